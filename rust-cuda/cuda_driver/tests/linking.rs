//! That a program which uses `cust` links against this crate and asks the loader for no driver.

extern crate cuda_driver as _;

use std::ffi::c_void;

use object::read::elf::{Dyn, ElfFile64, FileHeader};

#[macro_use]
#[path = "../src/symbols.rs"]
mod symbols;

macro_rules! addresses {
    ($($name:ident)*) => {
        [$((stringify!($name), cust::sys::$name as *const c_void)),*]
    };
}

#[test]
fn the_list_has_every_function_of_cust_raw() {
    let addresses = for_each_trampoline!(addresses);
    assert_eq!(addresses.len(), 353 - 2);
    assert!(addresses.is_sorted_by(|a, b| a.0 < b.0));

    let mut targets: Vec<_> = addresses.iter().map(|(_, address)| *address).collect();
    targets.sort_unstable();
    targets.dedup();
    assert_eq!(
        targets.len(),
        addresses.len(),
        "each name has its own trampoline"
    );
}

#[test]
fn the_program_does_not_need_libcuda() {
    let file = std::fs::read(std::env::current_exe().expect("this test has a path"))
        .expect("this test can be read");
    let elf = ElfFile64::<object::Endianness>::parse(&*file).expect("this test is an ELF file");
    let (endian, header) = (elf.endian(), elf.elf_header());
    let sections = header.sections(endian, &*file).expect("it has sections");
    let (entries, strings) = sections
        .dynamic(endian, &*file)
        .expect("the dynamic section can be read")
        .expect("it is dynamically linked");
    let strings = sections
        .strings(endian, &*file, strings)
        .expect("the dynamic section has strings");
    let needed: Vec<_> = entries
        .iter()
        .filter(|entry| entry.tag(endian) == object::elf::DT_NEEDED)
        .map(|entry| {
            let name = entry.string(endian, strings).expect("a name");
            String::from_utf8_lossy(name).into_owned()
        })
        .collect();
    assert!(
        needed.iter().any(|name| name.starts_with("libc.so")),
        "{needed:?}"
    );
    assert!(
        !needed.iter().any(|name| name.contains("cuda")),
        "{needed:?}"
    );
}
