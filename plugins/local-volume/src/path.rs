//! The path of a volume: absolute, and without parts that lead elsewhere.

use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

/// The longest path that the kernel accepts, with its final zero.
const MAX_PATH_LENGTH: usize = 4096;

/// An absolute path in its shortest form, without `.` and `..`; never `/` itself. Also the id of
/// the volume.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct VolumePath(String);

/// Reasons why a text is not such a path.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidPath {
    #[error("{0:?} is not an absolute path")]
    Relative(String),
    #[error("{0:?} has a part `.` or `..`")]
    DotSegment(String),
    #[error("the path is /")]
    RootDirectory,
    #[error("a path of {0} bytes is too long")]
    TooLong(usize),
    #[error("the path contains a NUL")]
    Nul,
}

impl VolumePath {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn as_path(&self) -> &Path {
        Path::new(&self.0)
    }
}

impl FromStr for VolumePath {
    type Err = InvalidPath;

    fn from_str(text: &str) -> Result<Self, InvalidPath> {
        if text.len() >= MAX_PATH_LENGTH {
            return Err(InvalidPath::TooLong(text.len()));
        }
        if text.contains('\0') {
            return Err(InvalidPath::Nul);
        }
        if !text.starts_with('/') {
            return Err(InvalidPath::Relative(text.to_owned()));
        }
        // `Path` drops a `.` silently; users must write what they mean.
        if text.split('/').any(|part| matches!(part, "." | "..")) {
            return Err(InvalidPath::DotSegment(text.to_owned()));
        }
        let parts =
            Path::new(text).components().filter(|part| matches!(part, Component::Normal(_)));
        let short = Path::new("/").join(parts.collect::<PathBuf>());
        match short.to_str() {
            None | Some("/") => Err(InvalidPath::RootDirectory),
            Some(short) => Ok(Self(short.to_owned())),
        }
    }
}

impl fmt::Display for VolumePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_absolute_paths_are_accepted() {
        for (text, expected) in [
            ("/a", Ok("/a")),
            ("/a/b", Ok("/a/b")),
            ("/a//b/", Ok("/a/b")),
            ("//a", Ok("/a")),
            ("/a b/ö\n", Ok("/a b/ö\n")),
            ("/...", Ok("/...")),
            ("a", Err(InvalidPath::Relative("a".to_owned()))),
            ("", Err(InvalidPath::Relative(String::new()))),
            ("/a/../b", Err(InvalidPath::DotSegment("/a/../b".to_owned()))),
            ("/a/..", Err(InvalidPath::DotSegment("/a/..".to_owned()))),
            ("/./a", Err(InvalidPath::DotSegment("/./a".to_owned()))),
            ("/", Err(InvalidPath::RootDirectory)),
            ("//", Err(InvalidPath::RootDirectory)),
            ("/a\0b", Err(InvalidPath::Nul)),
        ] {
            let parsed = text.parse::<VolumePath>();
            assert_eq!(parsed.as_ref().map(VolumePath::as_str), expected.as_ref().map(|p| *p));
        }
        let long = format!("/{}", "x".repeat(4095));
        assert_eq!(long.parse::<VolumePath>(), Err(InvalidPath::TooLong(4096)));
    }
}
