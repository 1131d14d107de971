//! Command line of `bench/run`, and the measurements that follow from it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{bail, ensure};
use clap::Parser;

use crate::contender::Contender;
use crate::fill::Load;
use crate::many::{ManyPlan, ResourceCounts};

/// File name that stands for standard output.
const STDOUT: &str = "-";

/// Measure backups and restores of Bowline and of Velero, and the floor under both, a plain client
///
/// Everything runs on this machine and is removed at the end, also after Ctrl-C. The first run builds
/// the programs that it needs with Go, which takes minutes.
#[derive(Debug, Parser)]
#[command(name = "bench/run", bin_name = "bench/run")]
pub(crate) struct Args {
    /// Number of objects to create: a mix of kinds and sizes as in a cluster in use
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    objects: Option<u32>,

    /// Back up clusters of these sizes, one after the other, to see how the cost grows: numbers of
    /// objects, separated by commas
    #[arg(long, value_name = "N,…", value_delimiter = ',', conflicts_with_all = ["objects", "big_secrets", "csi_claims"], value_parser = clap::value_parser!(u32).range(1..))]
    sizes: Vec<u32>,

    /// Create 500 Secrets of 900 KiB each instead
    #[arg(long, conflicts_with = "objects")]
    big_secrets: bool,

    /// Run pods on a real node instead, with this number of claims of a CSI driver, and measure backups
    /// with snapshots of them. Needs root
    #[arg(long, value_name = "N", conflicts_with_all = ["objects", "big_secrets"], value_parser = clap::value_parser!(u16).range(1..=500))]
    csi_claims: Option<u16>,

    /// Tasks to measure [default: backup and restore; csi with --csi-claims]
    #[arg(long, value_enum)]
    pub(crate) only: Option<Task>,

    /// Number of objects in a smaller backup for Velero's restore, which takes long; Bowline restores
    /// both this backup and the whole one
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    velero_objects: u32,

    /// Number of finished Backups of `--only many`
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    backups: u32,

    /// Number of Schedules of `--only many`
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(..=10_000))]
    schedules: u32,

    /// Number of finished Restores of `--only many`
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(..=100_000))]
    restores: u32,

    /// Seconds for which `--only many` watches an idle server: best a multiple of a minute, the
    /// period of its own checks
    #[arg(long, value_name = "SECONDS", default_value_t = 180, value_parser = clap::value_parser!(u16).range(1..=3600))]
    idle_seconds: u16,

    /// Number of rounds per contender; the figures are medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    pub(crate) rounds: u16,

    /// Do not measure Velero
    #[arg(long)]
    skip_velero: bool,

    /// Do not measure Bowline
    #[arg(long, conflicts_with = "skip_velero")]
    skip_bowline: bool,

    /// Also measure this other `bowline`, in alternating runs, and report the ratios of both
    #[arg(long, value_name = "FILE", conflicts_with = "skip_bowline")]
    pub(crate) baseline: Option<PathBuf>,

    /// Seed of the objects: the same seed creates the same objects
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// Write the figures of all rounds to this file; without a name, to standard output in place of
    /// the table
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = STDOUT)]
    json: Option<PathBuf>,

    /// Draw the figures in this SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Directory of relative file names
    #[arg(long, hide = true, default_value = ".")]
    folder: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Task {
    Backup,
    Restore,
    /// Backups of volumes with CSI snapshots.
    Csi,
    /// A server in a cluster with very many Backups, Schedules and Restores.
    Many,
}

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Measurement {
    /// Backups or restores of a load, or both.
    Load(Load),
    /// Backups of growing loads, smallest first.
    Sizes(Vec<Load>),
    /// Backups with snapshots of so many claims.
    Csi(usize),
    Many(ManyPlan),
}

/// Destination of the figures for programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JsonOutput {
    None,
    File(PathBuf),
    /// Standard output, which the table leaves alone.
    Stdout,
}

impl Args {
    /// The measurement, or the reason why these flags ask for none.
    pub(crate) fn measurement(&self) -> anyhow::Result<Measurement> {
        let loads = usize::from(self.objects.is_some()) + usize::from(self.big_secrets);
        if self.only == Some(Task::Many) {
            ensure!(
                loads == 0 && self.sizes.is_empty() && self.csi_claims.is_none(),
                "--only many takes --backups, --schedules and --restores instead of objects"
            );
            ensure!(self.svg.is_none(), "--only many has limits to meet, and no picture");
            ensure!(!self.skip_bowline, "--only many measures Bowline alone");
            return Ok(Measurement::Many(self.many()));
        }
        match (self.only, self.csi_claims) {
            (Some(Task::Csi), None) => bail!("--only csi needs --csi-claims"),
            (Some(Task::Backup | Task::Restore), Some(_)) => {
                bail!("--csi-claims is for --only csi")
            }
            (_, Some(claims)) => return Ok(Measurement::Csi(usize::from(claims))),
            _ => {}
        }
        if !self.sizes.is_empty() {
            ensure!(self.only == Some(Task::Backup), "--sizes is for --only backup");
            return Ok(Measurement::Sizes(self.loads_by_size()));
        }
        ensure!(
            loads == 1,
            "one of --objects, --sizes, --big-secrets, --csi-claims and --only many is required"
        );
        Ok(Measurement::Load(self.load()))
    }

    fn load(&self) -> Load {
        match self.objects {
            Some(objects) => Load::Mix { objects: objects as usize, seed: self.seed },
            None => Load::BigSecrets { seed: self.seed },
        }
    }

    /// Each size once, smallest first: a larger load begins with the smaller one.
    fn loads_by_size(&self) -> Vec<Load> {
        let mut sizes = self.sizes.clone();
        sizes.sort_unstable();
        sizes.dedup();
        let load = |objects| Load::Mix { objects: objects as usize, seed: self.seed };
        sizes.into_iter().map(load).collect()
    }

    fn many(&self) -> ManyPlan {
        let counts = ResourceCounts {
            backups: self.backups as usize,
            schedules: self.schedules as usize,
            restores: self.restores as usize,
        };
        let idle = Duration::from_secs(u64::from(self.idle_seconds));
        ManyPlan { counts, rounds: self.rounds, idle }
    }

    pub(crate) fn wants(&self, task: Task) -> bool {
        self.only.is_none_or(|only| only == task)
    }

    pub(crate) fn contenders(&self) -> Vec<Contender> {
        if self.only == Some(Task::Many) {
            return vec![Contender::Bowline];
        }
        let all =
            [Contender::Bowline, Contender::Baseline, Contender::Velero, Contender::VeleroTuned];
        all.into_iter()
            .filter(|contender| match contender {
                Contender::Bowline => !self.skip_bowline,
                Contender::Baseline => self.baseline.is_some(),
                Contender::Velero | Contender::VeleroTuned => !self.skip_velero,
            })
            .collect()
    }

    /// Parts of a load to restore with their contenders: smaller ones first.
    pub(crate) fn restores(&self, whole: Load) -> Vec<(Load, Vec<Contender>)> {
        let all = self.contenders();
        let part = match whole {
            Load::Mix { objects, seed } => {
                Load::Mix { objects: objects.min(self.velero_objects as usize), seed }
            }
            Load::BigSecrets { .. } => whole,
        };
        if self.skip_velero || part == whole {
            return vec![(whole, all)];
        }
        let mut restores = vec![(part, all)];
        if !self.skip_bowline {
            let is_ours = |by: &Contender| matches!(by, Contender::Bowline | Contender::Baseline);
            restores.push((whole, self.contenders().into_iter().filter(is_ours).collect()));
        }
        restores
    }

    pub(crate) fn json_output(&self) -> JsonOutput {
        match &self.json {
            None => JsonOutput::None,
            Some(file) if file == Path::new(STDOUT) => JsonOutput::Stdout,
            Some(file) => JsonOutput::File(self.folder.join(file)),
        }
    }

    /// File for the picture, if one is wanted.
    pub(crate) fn svg_file(&self) -> Option<PathBuf> {
        self.svg.as_ref().map(|file| self.folder.join(file))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(["bench/run"].iter().chain(arguments))
    }

    fn measurement(arguments: &[&str]) -> Option<Measurement> {
        parse(arguments).ok()?.measurement().ok()
    }

    #[test]
    fn exactly_one_load_is_required() {
        assert_eq!(measurement(&[]), None);
        assert_eq!(measurement(&["--objects", "0"]), None);
        assert_eq!(measurement(&["--objects", "5", "--big-secrets"]), None);
        assert!(parse(&["--big-secrets", "--skip-velero", "--skip-bowline"]).is_err());
        let load = Load::Mix { objects: 5, seed: 1 };
        assert_eq!(measurement(&["--objects", "5"]), Some(Measurement::Load(load)));
        let big = Measurement::Load(Load::BigSecrets { seed: 1 });
        assert_eq!(measurement(&["--big-secrets"]), Some(big));
    }

    #[test]
    fn sizes_are_backed_up_smallest_first() {
        let sizes = ["--sizes", "60,20,60,300", "--only=backup"];
        let load = |objects| Load::Mix { objects, seed: 1 };
        let expected = Measurement::Sizes(vec![load(20), load(60), load(300)]);
        assert_eq!(measurement(&sizes), Some(expected));
        assert_eq!(measurement(&["--sizes=20"]), None, "restores are not measured by size");
        assert_eq!(measurement(&["--sizes=20,0", "--only=backup"]), None);
        assert_eq!(measurement(&["--sizes=20", "--objects=5", "--only=backup"]), None);
    }

    #[test]
    fn many_resources_have_their_own_numbers_and_only_bowline() {
        let Some(Measurement::Many(plan)) = measurement(&["--only=many"]) else { panic!() };
        let ResourceCounts { backups, schedules, restores } = plan.counts;
        assert_eq!((backups, schedules, restores), (5000, 500, 1000));
        assert_eq!(plan.idle, Duration::from_mins(3));
        let few = ["--only=many", "--backups=50", "--schedules=0", "--restores=7", "--json"];
        let Some(Measurement::Many(plan)) = measurement(&few) else { panic!() };
        let ResourceCounts { backups, schedules, restores } = plan.counts;
        assert_eq!((backups, schedules, restores), (50, 0, 7));
        let args = parse(&few).unwrap();
        assert_eq!(args.contenders(), [Contender::Bowline]);
        assert_eq!(args.json_output(), JsonOutput::Stdout);
        assert_eq!(measurement(&["--only=many", "--objects=5"]), None);
        assert_eq!(measurement(&["--only=many", "--skip-bowline"]), None);
    }

    #[test]
    fn figures_go_to_a_file_below_the_folder_of_the_caller() {
        let args = ["--objects=5", "--json=a.json", "--svg=b.svg", "--folder=/f"];
        let args = parse(&args).unwrap();
        assert_eq!(args.json_output(), JsonOutput::File("/f/a.json".into()));
        assert_eq!(args.svg_file(), Some("/f/b.svg".into()));
        assert_eq!(parse(&["--objects=5"]).unwrap().json_output(), JsonOutput::None);
    }

    #[test]
    fn contender_can_be_skipped() {
        let names = |arguments: &[&str]| -> Vec<&str> {
            parse(arguments).unwrap().contenders().into_iter().map(Contender::name).collect()
        };
        assert_eq!(names(&["--objects=5"]), ["bowline", "velero", "velero_tuned"]);
        assert_eq!(names(&["--objects=5", "--skip-velero"]), ["bowline"]);
        let both = ["--objects=5", "--skip-velero", "--baseline=old/bowline"];
        assert_eq!(names(&both), ["bowline", "baseline"]);
        assert_eq!(names(&["--objects=5", "--skip-bowline"]), ["velero", "velero_tuned"]);
    }

    #[test]
    fn velero_restores_a_part_and_bowline_also_everything() {
        let restores = |arguments: &[&str]| -> Vec<(usize, Vec<&str>)> {
            let args = parse(arguments).unwrap();
            let restores = args.restores(args.load()).into_iter();
            restores
                .map(|(load, by)| (load.len(), by.into_iter().map(Contender::name).collect()))
                .collect()
        };
        let all = vec!["bowline", "velero", "velero_tuned"];
        assert_eq!(restores(&["--objects=900"]), [(900, all.clone())]);
        assert_eq!(restores(&["--objects=9000"]), [(2000, all.clone()), (9000, vec!["bowline"])]);
        let few = ["--objects=900", "--velero-objects=50"];
        assert_eq!(restores(&few), [(50, all.clone()), (900, vec!["bowline"])]);
        assert_eq!(restores(&["--big-secrets"]), [(501, all)]);
        assert_eq!(restores(&["--objects=9000", "--skip-velero"]), [(9000, vec!["bowline"])]);
        let without_us = restores(&["--objects=9000", "--skip-bowline"]);
        assert_eq!(without_us, [(2000, vec!["velero", "velero_tuned"])]);
    }

    #[test]
    fn csi_claims_are_measured_separately() {
        let expected = Some(Measurement::Csi(5));
        assert_eq!(measurement(&["--csi-claims=5"]), expected);
        assert_eq!(measurement(&["--csi-claims=5", "--only=csi"]), expected);
        assert_eq!(measurement(&["--csi-claims=5", "--only=backup"]), None);
        assert_eq!(measurement(&["--objects=5", "--only=csi"]), None);
        assert!(parse(&["--csi-claims=5", "--objects=5"]).is_err());
        assert!(parse(&["--csi-claims=0"]).is_err());
    }

    #[test]
    fn backup_and_restore_are_measured_unless_one_is_chosen() {
        let tasks = |arguments: &[&str]| {
            let args = parse(arguments).unwrap();
            [args.wants(Task::Backup), args.wants(Task::Restore)]
        };
        assert_eq!(tasks(&["--objects=5"]), [true, true]);
        assert_eq!(tasks(&["--objects=5", "--only=backup"]), [true, false]);
        assert_eq!(tasks(&["--objects=5", "--only=restore"]), [false, true]);
    }
}
