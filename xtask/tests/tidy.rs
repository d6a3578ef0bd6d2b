//! Rules of the repository that no compiler checks.

use std::fs;
use std::path::{Path, PathBuf};

/// The root of the checkout.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Every file with this extension, as a path below the root, and its content.
fn files(extension: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy();
            if path.is_dir() {
                let generated = name.starts_with('.') || ["target", "out"].contains(&&*name);
                if !generated {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|own| own == extension) {
                let content = fs::read_to_string(&path).unwrap();
                found.push((path.strip_prefix(root()).unwrap().to_owned(), content));
            }
        }
    }
    assert!(!found.is_empty());
    found
}

/// Fails with every line that breaks a rule.
#[track_caller]
fn none(rule: &str, broken: Vec<String>) {
    assert!(broken.is_empty(), "{rule}:\n  {}", broken.join("\n  "));
}

#[test]
fn instructions_stand_in_the_device_library_alone() {
    // In two pieces, or this file would break its own rule.
    let forbidden = [["asm", "!("].concat(), ["llvm", ".nvvm."].concat()];
    let broken = files("rs")
        .into_iter()
        .filter(|(path, _)| !path.starts_with("rust-cuda"))
        .flat_map(|(path, content)| {
            let lines = content
                .lines()
                .enumerate()
                .filter(|(_, line)| forbidden.iter().any(|text| line.contains(text)));
            let places = lines.map(|(index, _)| format!("{}:{}", path.display(), index + 1));
            places.collect::<Vec<_>>()
        })
        .collect();
    none(
        "inline PTX and LLVM intrinsics belong into rust-cuda/cuda_std",
        broken,
    );
}

#[test]
fn every_file_says_what_it_is_for() {
    let broken = files("rs")
        .into_iter()
        // Inputs and expected outputs of compile-time tests show bare code.
        .filter(|(path, _)| !path.components().any(|part| part.as_os_str() == "ui"))
        .filter(|(_, content)| !content.starts_with("//!") && !content.starts_with("#![doc"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    none("a source file begins with what it is for (//!)", broken);
}

/// The entries of a table of a manifest, as lines.
fn table<'a>(manifest: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let lines = manifest
        .lines()
        .skip_while(move |line| *line != format!("[{name}]"));
    let entries = lines.skip(1).take_while(|line| !line.starts_with('['));
    entries.filter(|line| !line.trim().is_empty() && !line.starts_with('#'))
}

#[test]
fn kernels_depend_on_the_device_library_alone() {
    let manifest = fs::read_to_string(root().join("kernels-gpu/Cargo.toml")).unwrap();
    let broken = table(&manifest, "dependencies")
        .filter(|entry| !entry.starts_with("cuda_std") && !entry.starts_with("half"))
        .map(str::to_owned)
        .collect();
    none("kernels-gpu depends on cuda_std and half", broken);
}

#[test]
fn versions_are_pinned_once() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let broken = table(&manifest, "workspace.dependencies")
        .filter(|entry| !entry.contains("path = ") && !entry.contains("\"="))
        .map(str::to_owned)
        .collect();
    none("a dependency from elsewhere has one exact version", broken);
}
