//! What the emulator, which runs one thread at a time, cannot see of memory ordering: the instructions
//! themselves. Counts are released and acquired at system scope, and nothing that arrives is read through the
//! path that does not see writes of the same launch. Each rule is also held against code that breaks it.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_builder::ptx::{Function, Module};
use tokenyard::Device;
use tokenyard_tests::Suite;

pub fn register(suite: &mut Suite) {
    suite.host("ep::ordering::of_every_entry", of_every_entry);
    suite.host("ep::ordering::broken_code_is_seen", broken_code_is_seen);
}

/// What an entry does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Sends,
    Receives,
    Both,
}

fn role(name: &str) -> Option<Role> {
    let rest = name.strip_prefix("ep_dispatch_");
    let rest = rest.or_else(|| name.strip_prefix("ep_combine_"))?;
    Some(match rest {
        rest if rest.starts_with("async_") => Role::Sends,
        rest if rest.starts_with("wait_") => Role::Receives,
        _ => Role::Both,
    })
}

/// The rules, for one entry.
fn check(function: &Function, role: Role) -> Result<()> {
    let count = |mnemonic: &str| {
        let instructions = function.instructions.iter();
        instructions
            .filter(|instruction| instruction.is(mnemonic))
            .count()
    };
    let name = &function.name;
    if role != Role::Receives {
        ensure!(
            count("st.release.sys.global.b64") >= 1,
            "{name} releases no count"
        );
        ensure!(
            count("cp.async.bulk.commit_group") == 0 || count("cp.async.bulk.wait_group") >= 1,
            "{name} does not wait for its copies"
        );
    }
    if role != Role::Sends {
        ensure!(
            count("ld.acquire.sys.global.b64") >= 1,
            "{name} acquires no count"
        );
        let incoherent = function.instructions.iter().find(|instruction| {
            let parts: Vec<_> = instruction.mnemonic.split('.').collect();
            parts.starts_with(&["ld", "global"]) && parts.contains(&"nc")
        });
        // The fused entry might read its tokens that way, but reads nothing so that it must not.
        if let Some(instruction) = incoherent {
            bail!(
                "{name}, line {}: {} of what may have been written in the launch",
                instruction.line,
                instruction.mnemonic
            );
        }
    }
    Ok(())
}

/// Applies the rules to each entry of a module; how many there are.
fn check_module(text: &str) -> Result<usize> {
    let module = Module::parse(text)?;
    let mut entries = 0;
    for function in &module.entries {
        if let Some(role) = role(&function.name) {
            check(function, role)?;
            entries += 1;
        }
    }
    Ok(entries)
}

/// Why there is nothing to check.
fn no_kernels() -> Result<Option<String>> {
    let reason = Device::cuda(0).err().map(|error| error.to_string());
    Ok(Some(reason.context("there is a GPU, but no PTX for it")?))
}

fn of_every_entry() -> Result<Option<String>> {
    let modules: Vec<_> = tokenyard::embedded_ptx().collect();
    if modules.is_empty() {
        return no_kernels();
    }
    for (target, text) in modules {
        let entries = check_module(text).with_context(|| target.clone())?;
        ensure!(
            entries == 30,
            "{target}: {entries} entries, not three of dispatch and of combine for each of five formats"
        );
    }
    Ok(None)
}

/// Code with one instruction changed for what others have shipped.
fn broken_code_is_seen() -> Result<Option<String>> {
    let modules: Vec<_> = tokenyard::embedded_ptx().collect();
    if modules.is_empty() {
        return no_kernels();
    }
    for (target, text) in modules {
        for (right, wrong) in [
            ("st.release.sys.global.b64", "st.relaxed.sys.global.b64"),
            ("st.release.sys.global.b64", "st.release.gpu.global.b64"),
            ("ld.acquire.sys.global.b64", "ld.relaxed.sys.global.b64"),
            ("ld.acquire.sys.global.b64", "ld.volatile.global.b64"),
            ("ld.global.", "ld.global.nc."),
            ("cp.async.bulk.wait_group", "cp.async.bulk.commit_group"),
        ] {
            // Before compute capability 9.0 there are no bulk copies.
            if !text.contains(right) && right.starts_with("cp.async.bulk") {
                continue;
            }
            ensure!(text.contains(right), "{target} has no {right}");
            ensure!(
                check_module(&text.replace(right, wrong)).is_err(),
                "{target}: {wrong} in the place of {right} was not seen"
            );
        }
    }
    Ok(None)
}
