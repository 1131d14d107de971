//! Which files of the plugin folder are plugins.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// How deep folders may be nested; a link that leads upwards is not followed for ever.
const DEPTH_LIMIT: usize = 16;

/// What a walk through the plugin folder found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    /// The executables, in the order in which their plugins run.
    pub(crate) executables: Vec<PathBuf>,
    /// Files that are not executable.
    pub(crate) ignored: Vec<PathBuf>,
}

/// Walks through `folder` and the folders in it, in the order of names. A folder that is not there
/// holds no plugins, as in Velero.
pub(crate) fn walk(folder: &Path) -> io::Result<Found> {
    let mut found = Found::default();
    match visit(folder, DEPTH_LIMIT, &mut found) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Found::default()),
        outcome => outcome.map(|()| found),
    }
}

fn visit(folder: &Path, depth: usize, found: &mut Found) -> io::Result<()> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<_>>()?;
    entries.sort();
    for path in entries {
        // A link counts as what it leads to; one that leads nowhere is no plugin.
        match std::fs::metadata(&path) {
            Ok(target) if target.is_dir() && depth > 0 => visit(&path, depth - 1, found)?,
            Ok(target) if target.is_file() && is_executable(&path, target.permissions().mode()) => {
                found.executables.push(path);
            }
            _ => found.ignored.push(path),
        }
    }
    Ok(())
}

fn is_executable(path: &Path, mode: u32) -> bool {
    mode & 0o111 != 0 || path.extension().is_some_and(|extension| extension == "exe")
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

        let found = walk(root).unwrap();
        let names = |paths: &[PathBuf]| -> Vec<String> {
            let relative = |path: &PathBuf| path.strip_prefix(root).unwrap().display().to_string();
            paths.iter().map(relative).filter(|path| !path.contains("up/")).collect()
        };
        assert_eq!(names(&found.executables), ["a", "link", "m/inner", "w.exe", "z"]);
        assert_eq!(names(&found.ignored), ["broken", "notes.txt"]);
    }

    #[test]
    fn a_folder_that_is_not_there_holds_no_plugins() {
        assert_eq!(walk(Path::new("/no/such/folder")).unwrap(), Found::default());
    }
}
