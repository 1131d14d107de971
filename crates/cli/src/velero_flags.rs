//! Flags of Velero that we have no use for. They are known by name, so that nobody is left with "unexpected
//! argument": some are taken and change nothing, which is said; others are refused, with what to do instead.
//! No help shows them.

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

/// A flag of Velero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flag {
    name: &'static str,
    shape: Shape,
    fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// `--flag`, or `--flag=false`.
    Switch,
    /// `--flag VALUE`.
    Value,
}

/// What becomes of a flag.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// What it asks for is done in any case.
    Done,
    /// It changes nothing, for this reason.
    Idle(&'static str),
    /// It is not taken, for this reason.
    Refused(&'static str),
    /// That depends on its value.
    Judged(fn(&str) -> Fate),
}

impl Flag {
    /// A flag that is on, off or not there. Off is what we do in any case.
    pub(crate) const fn switch(name: &'static str, fate: Fate) -> Self {
        Self { name, shape: Shape::Switch, fate }
    }

    /// A flag with a value.
    pub(crate) const fn value(name: &'static str, fate: Fate) -> Self {
        Self { name, shape: Shape::Value, fate }
    }

    /// The run in which nothing is backed up.
    pub(crate) const RESTORE_ONLY: Self = Self::switch("restore-only", Fate::Refused(RESTORE_ONLY));
    /// How files are copied.
    pub(crate) const UPLOADER: Self = Self::value(
        "uploader-type",
        Fate::Judged(|value| if value == "kopia" { Fate::Done } else { Fate::Refused(ONLY_KOPIA) }),
    );
    /// What is tried out. CSI snapshots are taken in any case.
    pub(crate) const FEATURES: Self = Self::value(
        "features",
        Fate::Judged(|value| {
            let has_all_versions = value.split(',').any(|one| one == "EnableAPIGroupVersions");
            if has_all_versions { Fate::Refused(ALL_VERSIONS) } else { Fate::Done }
        }),
    );
    /// Whether objects are read from memory.
    pub(crate) const CACHE: Self =
        Self::switch("disable-informer-cache", Fate::Idle("this version has no informer cache"));
    /// How repositories of files are looked after.
    pub(crate) const REPOSITORIES: [Self; 8] = [
        Self::value("default-repo-maintain-frequency", Fate::Idle(NO_REPOSITORIES)),
        Self::value("backup-repository-configmap", Fate::Idle(NO_REPOSITORIES)),
        Self::value("repo-maintenance-job-configmap", Fate::Idle(NO_REPOSITORIES)),
        Self::value("keep-latest-maintenance-jobs", Fate::Idle(NO_REPOSITORIES)),
        Self::value("maintenance-job-cpu-request", Fate::Idle(NO_REPOSITORIES)),
        Self::value("maintenance-job-mem-request", Fate::Idle(NO_REPOSITORIES)),
        Self::value("maintenance-job-cpu-limit", Fate::Idle(NO_REPOSITORIES)),
        Self::value("maintenance-job-mem-limit", Fate::Idle(NO_REPOSITORIES)),
    ];

    fn arg(self) -> Arg {
        let arg = Arg::new(self.name).long(self.name).hide(true);
        let arg = match self.shape {
            Shape::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
            Shape::Value => arg.num_args(1),
        };
        let flag = self;
        arg.value_parser(StringValueParser::new().try_map(move |value| flag.judge(&value)))
    }

    fn judge(self, value: &str) -> Result<Note, Refusal> {
        if self.shape == Shape::Switch {
            let is_on = flags::boolean(value).map_err(|why| Refusal::of(self, &why))?;
            if !is_on {
                return Ok(Note(None));
            }
        }
        let fate = match self.fate {
            Fate::Judged(judge) => judge(value),
            fate => fate,
        };
        match fate {
            Fate::Idle(why) => Ok(Note(Some(why))),
            Fate::Refused(why) => Err(Refusal::of(self, why)),
            Fate::Done | Fate::Judged(_) => Ok(Note(None)),
        }
    }
}

/// Why a flag that was said changes nothing, if there is something to say about it.
#[derive(Clone, Copy, Debug)]
struct Note(Option<&'static str>);

/// Why a flag is not taken.
#[derive(Debug)]
pub(crate) struct Refusal(String);

impl Refusal {
    fn of(flag: Flag, why: &str) -> Self {
        Self(format!("`--{}` is not supported: {why}", flag.name))
    }

    /// What is behind a mistake in a command line, if it is this.
    pub(crate) fn behind(error: &clap::Error) -> Option<&Self> {
        std::error::Error::source(error)?.downcast_ref()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

/// The flags of Velero that a command has no use for.
pub(crate) trait Unneeded: 'static {
    /// All of them.
    fn flags() -> Vec<Flag>;
}

/// Those of them that were said, as arguments of a command.
pub(crate) struct Unused<T> {
    notes: Vec<String>,
    of: PhantomData<fn() -> T>,
}

impl<T> Unused<T> {
    /// What is to be said about them.
    pub(crate) fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl<T> fmt::Debug for Unused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.notes.fmt(f)
    }
}

impl<T: Unneeded> clap::Args for Unused<T> {
    fn augment_args(command: Command) -> Command {
        command.args(T::flags().into_iter().map(Flag::arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<T: Unneeded> FromArgMatches for Unused<T> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut unused = Self { notes: Vec::new(), of: PhantomData };
        unused.update_from_arg_matches(matches)?;
        Ok(unused)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.notes.clear();
        for flag in T::flags() {
            let said = matches.try_get_one::<Note>(flag.name).ok().flatten();
            if let Some(Note(Some(why))) = said {
                self.notes.push(format!("`--{}` has no effect: {why}", flag.name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    struct Few;

    impl Unneeded for Few {
        fn flags() -> Vec<Flag> {
            vec![
                Flag::switch("no", Fate::Refused("do that instead")),
                Flag::value("idle", Fate::Idle("there is nothing")),
                Flag::FEATURES,
                Flag::UPLOADER,
            ]
        }
    }

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        unused: Unused<Few>,
    }

    fn notes(words: &[&str]) -> Result<Vec<String>, String> {
        let words = ["x"].iter().chain(words);
        match Line::try_parse_from(words) {
            Ok(line) => Ok(line.unused.notes().to_vec()),
            Err(error) => Err(Refusal::behind(&error).map(ToString::to_string).unwrap_or_default()),
        }
    }

    #[test]
    fn a_flag_is_refused_with_a_reason_or_taken_with_a_note() {
        assert_eq!(notes(&["--no"]), Err("`--no` is not supported: do that instead".to_owned()));
        assert_eq!(notes(&["--no=false"]), Ok(Vec::new()));
        assert_eq!(
            notes(&["--no=maybe"]),
            Err("`--no` is not supported: expected true or false".into())
        );
        let note = "`--idle` has no effect: there is nothing".to_owned();
        assert_eq!(notes(&["--idle", "7"]), Ok(vec![note]));
        assert_eq!(notes(&["--features=EnableCSI", "--uploader-type=kopia"]), Ok(Vec::new()));
        assert!(notes(&["--features=EnableCSI,EnableAPIGroupVersions"]).is_err());
        assert!(notes(&["--uploader-type=restic"]).is_err());
        assert_eq!(notes(&["--other"]), Err(String::new()));
    }

    #[test]
    fn no_help_shows_them() {
        let help = <Line as clap::CommandFactory>::command().render_long_help().to_string();
        assert!(!help.contains("--idle") && !help.contains("--features"), "{help}");
    }
}
