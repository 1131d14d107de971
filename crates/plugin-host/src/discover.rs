//! Search for plugins in the plugin folder.

use std::fs::{DirEntry, File};
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Maximum nesting of folders.
const MAX_DEPTH: usize = 16;

/// Result of a walk through the plugin folder.
#[derive(Debug, Default)]
pub(crate) struct PluginFiles {
    /// The executables, in the order in which their plugins run.
    pub(crate) executables: Vec<PathBuf>,
    /// Files that are not executable, and entries that are neither files nor folders.
    pub(crate) ignored: Vec<PathBuf>,
    /// Folders that could not be read, with the error.
    pub(crate) unreadable: Vec<(PathBuf, io::Error)>,
}

/// Walks through `folder` and its subfolders, in the order of names. Links to files count as the
/// files; links to folders are not followed, as in Velero. A missing folder contains no plugins.
pub(crate) fn walk(folder: &Path) -> PluginFiles {
    let mut found = PluginFiles::default();
    if folder.exists() {
        visit(folder, MAX_DEPTH, &mut found);
    }
    found
}

fn visit(folder: &Path, depth: usize, found: &mut PluginFiles) {
    let entries: io::Result<Vec<DirEntry>> = std::fs::read_dir(folder).and_then(Iterator::collect);
    let mut entries = match entries {
        Ok(entries) => entries,
        Err(error) => return found.unreadable.push((folder.to_owned(), error)),
    };
    entries.sort_by_key(DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            visit(&path, depth - 1, found);
            continue;
        }
        match std::fs::metadata(&path) {
            Ok(file) if file.is_file() && is_executable(&path, file.permissions().mode()) => {
                found.executables.push(path);
            }
            _ => found.ignored.push(path),
        }
    }
}

fn is_executable(path: &Path, mode: u32) -> bool {
    mode & 0o111 != 0 || path.extension().is_some_and(|extension| extension == "exe")
}

/// True if the system could run an executable file: a binary, or a script that names its
/// interpreter. A text file that is executable only because everything in its image is, is neither.
/// A file that cannot be read may be a program.
pub(crate) fn is_program(path: &Path) -> bool {
    let mut head = Vec::new();
    let read = File::open(path).and_then(|file| file.take(4).read_to_end(&mut head));
    read.is_err() || head == b"\x7fELF" || head.starts_with(b"#!")
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, create_dir_all, set_permissions, write};
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn executables_are_found_by_name_with_those_of_sub_folders_in_place() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        create_dir_all(root.join("m")).unwrap();
        for (name, mode) in
            [("z", 0o755), ("a", 0o755), ("m/inner", 0o700), ("notes.txt", 0o644), ("w.exe", 0o644)]
        {
            write(root.join(name), "").unwrap();
            set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
        }
        symlink(root.join("a"), root.join("link")).unwrap();
        symlink(root.join("nowhere"), root.join("broken")).unwrap();
        symlink(root, root.join("m/up")).unwrap();

        let found = walk(root);
        let names = |paths: &[PathBuf]| -> Vec<String> {
            let relative = |path: &PathBuf| path.strip_prefix(root).unwrap().display().to_string();
            paths.iter().map(relative).collect()
        };
        assert_eq!(names(&found.executables), ["a", "link", "m/inner", "w.exe", "z"]);
        assert_eq!(names(&found.ignored), ["broken", "m/up", "notes.txt"]);
        assert!(found.unreadable.is_empty());
    }

    #[test]
    fn missing_folder_holds_no_plugins() {
        let found = walk(Path::new("/no/such/folder"));
        assert!(found.executables.is_empty() && found.unreadable.is_empty());
    }

    #[test]
    fn binaries_and_scripts_are_programs_and_text_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for (content, expected) in [
            (&b"\x7fELF\x02\x01"[..], true),
            (b"#!/bin/sh\n", true),
            (b"# A plugin\n", false),
            (b"", false),
        ] {
            write(&path, content).unwrap();
            assert_eq!(is_program(&path), expected, "{content:?}");
        }
        assert!(is_program(&folder.path().join("missing")), "nobody knows");
    }

    #[test]
    fn unreadable_folder_is_reported_and_the_rest_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        write(root.join("a"), "").unwrap();
        set_permissions(root.join("a"), Permissions::from_mode(0o755)).unwrap();
        // A file where a folder is expected: fails even for root, who may read everything.
        let found = walk(&root.join("a"));
        assert_eq!(found.unreadable.len(), 1);
        assert_eq!(walk(root).executables.len(), 1);
    }
}
