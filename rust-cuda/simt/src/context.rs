//! Which engine the calling OS thread is driving, and how code on a fiber reaches it.
//!
//! A drive keeps a [`Context`] on the driver's stack and points a thread-local at it. Device functions
//! run on fiber stacks and go through that pointer. A fiber may be suspended in one OS thread and
//! resumed in another, so nothing read from the thread-local may be kept across a suspension.

use std::cell::Cell;
use std::panic::PanicHookInfo;
use std::ptr;
use std::sync::Once;
use std::thread;

use crate::engine::Engine;
use crate::fault::SourceLocation;
use crate::fiber::FiberId;

/// Bytes at the low end of a fiber's stack that device functions leave for unwinding and formatting.
const STACK_RESERVE: usize = 16 << 10;

thread_local! {
    static CURRENT: Cell<*const Context> = const { Cell::new(ptr::null()) };
}

/// What a panic hook could see of a panic.
pub(crate) struct Panicked {
    pub message: String,
    pub location: Option<SourceLocation>,
}

/// One drive of one engine by the calling OS thread.
pub(crate) struct Context {
    machine: u64,
    engine: *mut Engine,
    /// The fiber that is running, if one is.
    running: Cell<Option<FiberId>>,
    /// Whether a host function enqueued on a stream is running.
    in_host_function: Cell<bool>,
    /// Whether the running fiber unwinds: it must not suspend, and device functions do nothing.
    unwinding: Cell<bool>,
    panicked: Cell<Option<Panicked>>,
    outer: *const Context,
}

/// What a device function does after it has spoken to the engine.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Next {
    /// Go on.
    #[default]
    Continue,
    /// Let others run; go on when resumed. After a fault the fiber never is.
    Suspend,
    /// Let others run, then ask the engine again.
    Retry,
}

impl Context {
    pub fn new(machine: u64, engine: *mut Engine) -> Self {
        Self {
            machine,
            engine,
            running: Cell::new(None),
            in_host_function: Cell::new(false),
            unwinding: Cell::new(false),
            panicked: Cell::new(None),
            outer: CURRENT.get(),
        }
    }

    /// Makes this the calling thread's context until the guard is dropped.
    pub fn enter(&self) -> Entered {
        let previous = CURRENT.replace(self);
        debug_assert!(ptr::eq(previous, self.outer));
        Entered { previous }
    }

    pub fn set_running(&self, fiber: Option<FiberId>) {
        self.running.set(fiber);
    }

    pub fn set_in_host_function(&self, inside: bool) {
        self.in_host_function.set(inside);
    }

    /// From here on fibers are only unwound.
    pub fn set_unwinding(&self) {
        self.unwinding.set(true);
    }

    pub fn take_panic(&self) -> Option<Panicked> {
        self.panicked.take()
    }
}

/// Restores the calling thread's previous context when dropped.
pub(crate) struct Entered {
    previous: *const Context,
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.previous);
    }
}

/// The calling thread's context, or null.
///
/// Never inlined: an inlined body would let the compiler keep the address of the thread-local across a
/// suspension, after which the fiber may be in another OS thread.
#[inline(never)]
fn current() -> *const Context {
    CURRENT.get()
}

/// Whether the calling thread is, at any depth, inside a drive of this machine.
pub(crate) fn is_driving(machine: u64) -> bool {
    let mut context = current();
    // SAFETY: a non-null `CURRENT` points at a context on the stack of a drive that has not returned,
    // and `outer` at the one that was current when it was made, whose drive is a caller of it.
    while let Some(entered) = unsafe { context.as_ref() } {
        if entered.machine == machine {
            return true;
        }
        context = entered.outer;
    }
    false
}

/// Whether the calling code runs on a fiber.
pub(crate) fn on_fiber() -> bool {
    // SAFETY: as in `is_driving`.
    unsafe { current().as_ref() }.is_some_and(|context| context.running.get().is_some())
}

#[cold]
#[inline(never)]
fn outside() -> ! {
    panic!("simt::device functions can only be called by a kernel that runs on a simt::Machine")
}

fn fiber_context<'a>() -> (&'a Context, FiberId) {
    // SAFETY: as in `is_driving`. The reference is not kept across a suspension: every caller uses it
    // before it suspends.
    match unsafe { current().as_ref() } {
        Some(context) => match context.running.get() {
            Some(fiber) => (context, fiber),
            None => outside(),
        },
        None => outside(),
    }
}

/// Reads something of the engine for the running fiber.
pub(crate) fn peek<R>(read: impl FnOnce(&Engine, FiberId) -> R) -> R {
    let (context, fiber) = fiber_context();
    // SAFETY: a fiber is running, so the drive is inside `resume` and holds no reference to the engine;
    // the driver's OS thread, which is this one, holds the machine's lock. `read` cannot suspend, since
    // suspending needs the engine through this module, and no closure in this crate does so.
    read(unsafe { &*context.engine }, fiber)
}

/// Lets the running fiber speak to the engine. While its stack unwinds, `act` is not called.
pub(crate) fn with<R: Default>(act: impl FnOnce(&mut Engine, FiberId) -> R) -> R {
    let (context, fiber) = fiber_context();
    if context.unwinding.get() {
        return while_unwinding();
    }
    // SAFETY: as in `peek`; the exclusive reference ends before anything else can reach the engine.
    let engine = unsafe { &mut *context.engine };
    let marker = 0_u8;
    let left = (&raw const marker)
        .addr()
        .saturating_sub(engine.stack_start(fiber));
    if left < STACK_RESERVE {
        engine.fail_stack_exhausted(fiber, left);
        suspend();
        return R::default();
    }
    act(engine, fiber)
}

#[cold]
fn while_unwinding<R: Default>() -> R {
    // The kernel has caught the panic that unwound it. It cannot go on: the fault is recorded.
    if !thread::panicking() {
        suspend();
    }
    R::default()
}

/// As [`with`], and then does what the engine says.
pub(crate) fn act(mut act: impl FnMut(&mut Engine, FiberId) -> Next) {
    loop {
        match with(&mut act) {
            Next::Continue => return,
            Next::Suspend => return suspend(),
            Next::Retry => suspend(),
        }
    }
}

/// Gives control back to the drive until the running fiber is resumed.
pub(crate) fn suspend() {
    let yielder = peek(Engine::yielder);
    // SAFETY: the yielder was handed to this fiber's body, which is still on the stack below, and it is
    // this fiber that runs.
    unsafe { (*yielder).suspend(()) };
}

/// Notes a panic that the hook has not seen, from its payload.
pub(crate) fn note_payload(payload: &(dyn std::any::Any + Send)) {
    let (context, _) = fiber_context();
    context.note(payload_text(payload), None);
}

impl Context {
    /// Notes a panic, unless one is noted already or the fiber is being torn down.
    pub fn note(&self, message: String, location: Option<SourceLocation>) {
        if !self.unwinding.replace(true) {
            self.panicked.set(Some(Panicked { message, location }));
        }
    }
}

/// The message of a panic payload.
pub(crate) fn payload_text(payload: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "panic with a payload that is not text".to_owned()
    }
}

/// Keeps panics of kernels and stream functions from the default hook: they are reported as faults.
pub(crate) fn install_panic_hook() {
    static INSTALLED: Once = Once::new();
    // The hook cannot be changed by a panicking thread. Without it faults lack the source location.
    if thread::panicking() {
        return;
    }
    INSTALLED.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !capture(info) {
                previous(info);
            }
        }));
    });
}

fn capture(info: &PanicHookInfo<'_>) -> bool {
    // SAFETY: as in `is_driving`.
    let Some(context) = (unsafe { current().as_ref() }) else {
        return false;
    };
    if context.running.get().is_none() && !context.in_host_function.get() {
        return false;
    }
    let location = info.location().map(|location| SourceLocation {
        file: location.file().to_owned().into(),
        line: location.line(),
        column: location.column(),
    });
    context.note(payload_text(info.payload()), location);
    true
}
