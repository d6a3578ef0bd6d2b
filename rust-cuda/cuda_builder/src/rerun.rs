//! Telling cargo when to run a build script again.
//!
//! Cargo runs it again when a file named with `cargo::rerun-if-changed` has changed. Named are the
//! files that the compiler read (from cargo's dep-info), the manifests of the crate and of its path
//! dependencies, and the lock file: a new source file is always announced by a change to one of
//! these. Target folders are never named.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata};

/// The folders of the packages compiled for the one in `root` that lie on this machine's disk:
/// itself and its path dependencies, direct or not.
///
/// Taken from the manifests of the workspace alone, without resolving versions, which would need
/// every dependency of every member downloaded.
pub(crate) fn package_folders(metadata: &Metadata, root: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        let package = metadata.packages.iter().find(|package| {
            package
                .manifest_path
                .parent()
                .is_some_and(|own| own == folder)
        });
        let dependencies = package.iter().flat_map(|package| &package.dependencies);
        if found.insert(folder) {
            open.extend(
                dependencies
                    .filter(|dependency| dependency.kind != DependencyKind::Development)
                    .filter_map(|dependency| dependency.path.clone())
                    .map(PathBuf::from),
            );
        }
    }
    found
}

/// What to watch whatever becomes of the compilation.
pub(crate) fn manifests(metadata: &Metadata, folders: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    let workspace = metadata.workspace_root.as_std_path();
    folders
        .iter()
        .map(|folder| folder.join("Cargo.toml"))
        // Versions and features of a workspace stand in its own manifest.
        .chain([workspace.join("Cargo.toml"), workspace.join("Cargo.lock")])
        .filter(|file| file.is_file())
        .collect()
}

/// What to watch when the crate did not compile and there is no list of files: the folders of
/// sources.
pub(crate) fn source_folders(folders: &BTreeSet<PathBuf>) -> Vec<PathBuf> {
    folders
        .iter()
        .map(|folder| folder.join("src"))
        .filter(|folder| folder.is_dir())
        .collect()
}

/// The files that a finished compilation read, from the dep-info file that cargo writes beside the
/// artifact. Empty where there is none.
pub(crate) fn sources(dep_info: &Path) -> Vec<PathBuf> {
    fs::read_to_string(dep_info)
        .map(|text| parse_dep_info(&text))
        .unwrap_or_default()
}

/// The dependencies of a Makefile rule `target: file file…` with blanks escaped by backslashes.
fn parse_dep_info(text: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for rule in text.lines().filter_map(|line| line.split_once(": ")) {
        let mut file = String::new();
        let mut characters = rule.1.chars().peekable();
        while let Some(character) = characters.next() {
            match character {
                '\\' if characters.peek() == Some(&' ') => {
                    file.extend(characters.next());
                }
                ' ' => files.push(std::mem::take(&mut file)),
                other => file.push(other),
            }
        }
        files.push(file);
    }
    files.retain(|file| !file.is_empty());
    files.sort();
    files.dedup();
    files.into_iter().map(PathBuf::from).collect()
}

/// Names the files to cargo, each once.
pub(crate) fn announce<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) {
    for path in paths.into_iter().collect::<BTreeSet<_>>() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// Names the variable by which rustup tells which toolchain it chose.
pub(crate) fn announce_toolchain() {
    println!("cargo::rerun-if-env-changed=RUSTUP_TOOLCHAIN");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dep_info_is_a_makefile_rule() {
        let text =
            "/t/libk.a: /k/src/lib.rs /k/src/with\\ blank.rs C:\\k\\src\\a.rs /k/src/lib.rs\n";
        let expected = ["/k/src/lib.rs", "/k/src/with blank.rs", "C:\\k\\src\\a.rs"];
        let mut files = parse_dep_info(text);
        files.sort_by_key(|file| expected.iter().position(|e| Path::new(e) == file));
        assert_eq!(files, expected.map(PathBuf::from));
        assert!(parse_dep_info("").is_empty());
        assert!(parse_dep_info("/t/libk.a: \n").is_empty());
    }

    #[test]
    fn no_dep_info_is_an_empty_list() {
        assert!(sources(Path::new("/there/is/none")).is_empty());
    }
}
