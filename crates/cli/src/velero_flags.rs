//! Flags of Velero that Bowline does not use. They are known by name, so that a user never gets "unexpected argument":
//! some are accepted without effect, with a message; others are rejected with a hint. The help does not show them.

use std::fmt;
use std::marker::PhantomData;

use clap::builder::{StringValueParser, TypedValueParser as _};
use clap::{Arg, ArgMatches, Command, FromArgMatches};

use crate::flags;

/// Reasons that several flags share.
pub(crate) const NO_FILE_BACKUP: &str = "this version has no file-system backup";
pub(crate) const NO_REPOSITORIES: &str = "this version has no file-system backup repositories to \
                                          maintain";
const ONLY_KOPIA: &str = "the only uploader type of Velero is `kopia`; omit the flag";
const RESTORE_ONLY: &str = "make backup locations read-only: add them with `bowline \
                            backup-location create --access-mode=ReadOnly`, and pause schedules \
                            with `bowline schedule pause --all`";
const ALL_VERSIONS: &str = "each resource is backed up in the version that the cluster prefers; \
                            omit `EnableAPIGroupVersions` if that is sufficient";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Flag {
    name: &'static str,
    shape: FlagShape,
    effect: FlagEffect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FlagShape {
    /// `--flag`, or `--flag=false`.
    Switch,
    /// `--flag VALUE`.
    Value,
}

/// Treatment of a flag.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FlagEffect {
    /// Bowline always does what the flag requests.
    Implied,
    /// The flag changes nothing, for this reason.
    NoEffect(&'static str),
    /// The flag is rejected, for this reason.
    Unsupported(&'static str),
    /// The treatment depends on the value.
    ByValue(fn(&str) -> FlagEffect),
}

impl Flag {
    /// Flag that is on, off or absent. Off is what Bowline does anyway.
    pub(crate) const fn switch(name: &'static str, effect: FlagEffect) -> Self {
        Self { name, shape: FlagShape::Switch, effect }
    }

    /// Flag with a value.
    pub(crate) const fn value(name: &'static str, effect: FlagEffect) -> Self {
        Self { name, shape: FlagShape::Value, effect }
    }

    /// Mode of the server without backups.
    pub(crate) const RESTORE_ONLY: Self =
        Self::switch("restore-only", FlagEffect::Unsupported(RESTORE_ONLY));
    /// Uploader of files.
    pub(crate) const UPLOADER: Self = Self::value(
        "uploader-type",
        FlagEffect::ByValue(|value| {
            if value == "kopia" { FlagEffect::Implied } else { FlagEffect::Unsupported(ONLY_KOPIA) }
        }),
    );
    /// Experimental features. CSI snapshots are always taken.
    pub(crate) const FEATURES: Self = Self::value(
        "features",
        FlagEffect::ByValue(|value| {
            let has_all_versions = value.split(',').any(|one| one == "EnableAPIGroupVersions");
            if has_all_versions {
                FlagEffect::Unsupported(ALL_VERSIONS)
            } else {
                FlagEffect::Implied
            }
        }),
    );
    /// Cache of objects in memory.
    pub(crate) const CACHE: Self = Self::switch(
        "disable-informer-cache",
        FlagEffect::NoEffect("this version has no informer cache"),
    );
    /// Maintenance of file repositories.
    pub(crate) const REPOSITORIES: [Self; 8] = [
        Self::value("default-repo-maintain-frequency", FlagEffect::NoEffect(NO_REPOSITORIES)),
        Self::value("backup-repository-configmap", FlagEffect::NoEffect(NO_REPOSITORIES)),
        Self::value("repo-maintenance-job-configmap", FlagEffect::NoEffect(NO_REPOSITORIES)),
        Self::value("keep-latest-maintenance-jobs", FlagEffect::NoEffect(NO_REPOSITORIES)),
        Self::value("maintenance-job-cpu-request", FlagEffect::NoEffect(NO_REPOSITORIES)),
        Self::value("maintenance-job-mem-request", FlagEffect::NoEffect(NO_REPOSITORIES)),
        Self::value("maintenance-job-cpu-limit", FlagEffect::NoEffect(NO_REPOSITORIES)),
        Self::value("maintenance-job-mem-limit", FlagEffect::NoEffect(NO_REPOSITORIES)),
    ];

    fn arg(self) -> Arg {
        let arg = Arg::new(self.name).long(self.name).hide(true);
        let arg = match self.shape {
            FlagShape::Switch => {
                arg.num_args(0..=1).require_equals(true).default_missing_value("true")
            }
            FlagShape::Value => arg.num_args(1),
        };
        let flag = self;
        arg.value_parser(StringValueParser::new().try_map(move |value| flag.evaluate(&value)))
    }

    fn evaluate(self, value: &str) -> Result<IgnoredReason, UnsupportedFlag> {
        if self.shape == FlagShape::Switch {
            let is_on = flags::boolean(value)
                .map_err(|error| UnsupportedFlag::new(self, &error.to_string()))?;
            if !is_on {
                return Ok(IgnoredReason(None));
            }
        }
        let effect = match self.effect {
            FlagEffect::ByValue(evaluate) => evaluate(value),
            effect => effect,
        };
        match effect {
            FlagEffect::NoEffect(reason) => Ok(IgnoredReason(Some(reason))),
            FlagEffect::Unsupported(reason) => Err(UnsupportedFlag::new(self, reason)),
            FlagEffect::Implied | FlagEffect::ByValue(_) => Ok(IgnoredReason(None)),
        }
    }
}

/// Reason why a given flag changes nothing, if it needs a message.
#[derive(Clone, Copy, Debug)]
struct IgnoredReason(Option<&'static str>);

/// Message for a rejected flag.
#[derive(Debug)]
pub(crate) struct UnsupportedFlag(String);

impl UnsupportedFlag {
    fn new(flag: Flag, reason: &str) -> Self {
        Self(format!("`--{}` is not supported: {reason}", flag.name))
    }

    /// Cause of an error in a command line, if it is this one.
    pub(crate) fn find_in(error: &clap::Error) -> Option<&Self> {
        std::error::Error::source(error)?.downcast_ref()
    }
}

impl fmt::Display for UnsupportedFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnsupportedFlag {}

/// Flags of Velero that a command does not use.
pub(crate) trait IgnoredFlagSet: 'static {
    fn flags() -> Vec<Flag>;
}

/// The given ones among them, as arguments of a command.
pub(crate) struct IgnoredFlags<T> {
    warnings: Vec<String>,
    of: PhantomData<fn() -> T>,
}

impl<T> IgnoredFlags<T> {
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl<T> fmt::Debug for IgnoredFlags<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.warnings.fmt(f)
    }
}

impl<T: IgnoredFlagSet> clap::Args for IgnoredFlags<T> {
    fn augment_args(command: Command) -> Command {
        command.args(T::flags().into_iter().map(Flag::arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: IgnoredFlagSet> FromArgMatches for IgnoredFlags<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut ignored = Self { warnings: Vec::new(), of: PhantomData };
        ignored.update_from_arg_matches(matches)?;
        Ok(ignored)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.warnings.clear();
        for flag in T::flags() {
            let ignored = matches.try_get_one::<IgnoredReason>(flag.name).ok().flatten();
            if let Some(IgnoredReason(Some(reason))) = ignored {
                self.warnings.push(format!("`--{}` has no effect: {reason}", flag.name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    struct TestFlags;

    impl IgnoredFlagSet for TestFlags {
        fn flags() -> Vec<Flag> {
            vec![
                Flag::switch("no", FlagEffect::Unsupported("do that instead")),
                Flag::value("idle", FlagEffect::NoEffect("there is nothing")),
                Flag::FEATURES,
                Flag::UPLOADER,
            ]
        }
    }

    #[derive(Debug, clap::Parser)]
    struct TestCommand {
        #[command(flatten)]
        unused: IgnoredFlags<TestFlags>,
    }

    fn warnings_for(words: &[&str]) -> Result<Vec<String>, String> {
        let words = ["x"].iter().chain(words);
        match TestCommand::try_parse_from(words) {
            Ok(line) => Ok(line.unused.warnings().to_vec()),
            Err(error) => {
                Err(UnsupportedFlag::find_in(&error).map(ToString::to_string).unwrap_or_default())
            }
        }
    }

    #[test]
    fn flag_is_refused_with_a_reason_or_ignored_with_a_warning() {
        assert_eq!(
            warnings_for(&["--no"]),
            Err("`--no` is not supported: do that instead".to_owned())
        );
        assert_eq!(warnings_for(&["--no=false"]), Ok(Vec::new()));
        assert_eq!(
            warnings_for(&["--no=maybe"]),
            Err("`--no` is not supported: expected true or false".into())
        );
        let warning = "`--idle` has no effect: there is nothing".to_owned();
        assert_eq!(warnings_for(&["--idle", "7"]), Ok(vec![warning]));
        assert_eq!(
            warnings_for(&["--features=EnableCSI", "--uploader-type=kopia"]),
            Ok(Vec::new())
        );
        assert!(warnings_for(&["--features=EnableCSI,EnableAPIGroupVersions"]).is_err());
        assert!(warnings_for(&["--uploader-type=restic"]).is_err());
        assert_eq!(warnings_for(&["--other"]), Err(String::new()));
    }

    #[test]
    fn ignored_flags_are_hidden_in_help() {
        let help = <TestCommand as clap::CommandFactory>::command().render_long_help().to_string();
        assert!(!help.contains("--idle") && !help.contains("--features"), "{help}");
    }
}
