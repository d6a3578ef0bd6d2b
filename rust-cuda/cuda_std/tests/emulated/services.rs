//! Printing, assertions, clocks, and ways to stop.

use simt::FaultKind;

use crate::harness::{Buffer, fault, machine, reports, run, target_machine};
use crate::kernels::services::{
    CLOCKS, HIDDEN, asserts, clocks, hidden, prints, shared_sizes, stops,
};

#[test]
fn lines_of_threads_are_not_mixed() {
    let machine = machine(3);
    let values = Buffer::new(&machine, &[0.5f32, 1.25, 2.0]);
    let args = prints::Args {
        values: values.ptr(),
        values_len: 3,
    };
    run(&machine, 1, 32, 0, args);
    let mut lines: Vec<String> = machine
        .take_output()
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            "thread 0: 0.50 of 3%",
            "thread 1: 1.25 of 3%",
            "thread 2: 2.00 of 3%"
        ]
    );
}

#[test]
fn a_failed_assertion_names_both_values_and_the_line() {
    let machine = machine(0);
    let values = Buffer::new(&machine, &[4u32, 4, 5, 4]);
    let args = asserts::Args {
        values: values.ptr(),
        values_len: 4,
        expected: 4,
    };
    let fault = fault(&machine, 1, 4, 0, args);
    assert_eq!(fault.kind, FaultKind::Trap);
    for part in ["values[i] == expected", "left : 5", "right: 4"] {
        assert!(fault.message.contains(part), "{fault}");
    }
    assert!(fault.to_string().contains("services.rs"), "{fault}");
}

#[test]
fn clocks_advance_and_the_capability_is_the_target_s() {
    for capability in [80, 89, 90, 100] {
        let machine = target_machine(0, capability, false);
        for words in reports(&machine, 1, 4, CLOCKS, |out| clocks::Args { out }) {
            assert_eq!(words, [1, 1, capability]);
        }
    }
}

#[test]
fn a_hidden_value_is_the_value() {
    for value in [0, 1, 0x8000_0000, u32::MAX] {
        assert_eq!(cuda_std::misc::hidden(value), value);
    }
    let machine = machine(0);
    let words = Buffer::new(&machine, &[5u32, 7, u32::MAX, 2]);
    assert_eq!(words.read().len(), HIDDEN as usize);
    let sums = reports(&machine, 2, 32, 1, |out| hidden::Args {
        words: words.ptr(),
        out,
    });
    assert_eq!(sums, vec![[5 * 27 + 7 * 9 - 3 + 2]; 64]);
}

#[test]
fn every_way_to_stop_is_a_fault() {
    for (how, kind) in [
        (0, FaultKind::Trap),
        (1, FaultKind::Trap),
        (2, FaultKind::Panic),
    ] {
        let fault = fault(&machine(0), 1, 1, 0, stops::Args { how });
        assert_eq!(fault.kind, kind, "{fault}");
        assert!(fault.to_string().contains("services.rs"), "{fault}");
    }
    run(&machine(0), 1, 1, 0, stops::Args { how: 3 });
}

#[test]
fn what_only_a_gpu_has_says_so() {
    let machine = machine(0);
    let out = Buffer::new(&machine, &[0u32]);
    let fault = fault(&machine, 1, 1, 0, shared_sizes::Args { out: out.ptr() });
    assert_eq!(fault.kind, FaultKind::Panic);
    assert!(fault.message.contains("total_smem_size"), "{fault}");
}
