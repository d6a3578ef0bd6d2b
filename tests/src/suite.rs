//! The list of cases, and how it is run and summed up.

use std::process::ExitCode;
use std::sync::{PoisonError, RwLock};

use anyhow::Result;
use libtest_mimic::{Arguments, Completion, Conclusion, Failed, Trial};

use crate::backend::{self, Backend, Context, Settings};

/// Held by every case that runs on a GPU; by one that must be alone there, for itself.
static GPU: RwLock<()> = RwLock::new(());

/// Cases, each under the name of the backend that it runs on: `emulator::router::matches_the_host`.
pub struct Suite {
    settings: Settings,
    trials: Vec<Trial>,
}

/// What becomes of a case on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It runs.
    Run,
    /// It is skipped, for this reason.
    Skip(String),
    /// It fails without having run, for this reason.
    Fail(String),
}

impl Verdict {
    /// Decides from whether there is a GPU, and whether there must be one.
    pub fn on_gpu<T>(gpu: Result<T, &str>, require: bool) -> Self {
        match gpu {
            Ok(_) => Verdict::Run,
            Err(reason) if require => {
                Verdict::Fail(format!("TOKENYARD_REQUIRE_CUDA is set, and {reason}"))
            }
            Err(reason) => Verdict::Skip(skipped(reason)),
        }
    }
}

impl Suite {
    /// An empty suite.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            trials: Vec::new(),
        }
    }

    /// Adds a case that runs on both backends.
    pub fn both(
        &mut self,
        name: &str,
        case: impl Fn(&Context) -> Result<()> + Clone + Send + 'static,
    ) {
        self.emulator(name, case.clone());
        self.cuda(name, case);
    }

    /// Adds a case that runs on both backends, and has the GPU for itself: one whose kernels wait for others that are
    /// launched later, on another stream. A cooperative launch of another case, itself waiting for the room that
    /// the first ones take, could be in front of those.
    pub fn both_alone(
        &mut self,
        name: &str,
        case: impl Fn(&Context) -> Result<()> + Clone + Send + 'static,
    ) {
        self.emulator(name, case.clone());
        self.on_gpu(name, move |context| {
            let _alone = GPU.write().unwrap_or_else(PoisonError::into_inner);
            case(context)
        });
    }

    /// Adds a case that runs in the emulator only.
    pub fn emulator(&mut self, name: &str, case: impl Fn(&Context) -> Result<()> + Send + 'static) {
        let context = self.context(Backend::Emulator);
        self.trials
            .push(Trial::test(format!("emulator::{name}"), move || {
                case(&context).map_err(failed)
            }));
    }

    /// Adds a case that runs on a GPU only.
    pub fn cuda(&mut self, name: &str, case: impl Fn(&Context) -> Result<()> + Send + 'static) {
        self.on_gpu(name, move |context| {
            let _shared = GPU.read().unwrap_or_else(PoisonError::into_inner);
            case(context)
        });
    }

    fn on_gpu(&mut self, name: &str, case: impl Fn(&Context) -> Result<()> + Send + 'static) {
        let context = self.context(Backend::Cuda);
        let require = self.settings.require_cuda;
        self.trials
            .push(Trial::ignorable_test(
                format!("cuda::{name}"),
                move || match Verdict::on_gpu(backend::gpu(), require) {
                    Verdict::Run => case(&context)
                        .map(|()| Completion::Completed)
                        .map_err(failed),
                    Verdict::Skip(reason) => Ok(Completion::ignored_with(reason)),
                    Verdict::Fail(reason) => Err(reason.into()),
                },
            ));
    }

    /// Adds a case that needs no device. `Ok(Some(reason))` means that it could not be run.
    pub fn host(
        &mut self,
        name: &str,
        case: impl FnOnce() -> Result<Option<String>> + Send + 'static,
    ) {
        self.trials
            .push(Trial::ignorable_test(format!("host::{name}"), move || {
                Ok(match case().map_err(failed)? {
                    None => Completion::Completed,
                    Some(reason) => Completion::ignored_with(skipped(&reason)),
                })
            }));
    }

    fn context(&self, backend: Backend) -> Context {
        Context {
            backend,
            settings: self.settings,
        }
    }

    /// Runs the cases that `arguments` select. The last line of the output is
    /// `N passed, N failed, N skipped`.
    pub fn run(self, arguments: &Arguments) -> ExitCode {
        let conclusion = libtest_mimic::run(arguments, self.trials);
        if !arguments.list {
            println!("{}", summary(&conclusion));
        }
        conclusion.exit_code()
    }
}

fn summary(conclusion: &Conclusion) -> String {
    let mut text = String::new();
    if conclusion.num_ignored > 0
        && let Err(reason) = backend::gpu()
    {
        text.push_str(&format!("cuda cases were skipped: {reason}\n"));
    }
    let Conclusion {
        num_passed,
        num_failed,
        num_ignored,
        ..
    } = conclusion;
    text.push_str(&format!(
        "{num_passed} passed, {num_failed} failed, {num_ignored} skipped"
    ));
    text
}

/// The gist of a reason, for the line of each case; the end of the output has all of it, once.
fn skipped(reason: &str) -> String {
    format!("skipped: {}", reason.split(';').next().unwrap_or(reason))
}

/// The whole chain of causes.
fn failed(error: anyhow::Error) -> Failed {
    format!("{error:#}").into()
}
