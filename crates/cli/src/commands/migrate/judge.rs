//! What carries over and what does not. Asks nobody.

use bowline_api::BackupSpec;
use clap::Parser as _;
use kube::ResourceExt as _;
use serde::Serialize;

use super::facts::{Facts, Server};
use crate::commands::server;
use crate::open_runs;

/// How to switch to Bowline.
pub(super) const FORTH: &[&str] = &[
    "wait for open backups and restores, and pause schedules if you want no gap unnoticed",
    "`kubectl scale deployment velero -n NAMESPACE --replicas=0`",
    "`bowline install -n NAMESPACE --profile=full --no-secret --no-default-backup-location` with \
     --plugins and, after `--`, the flags that carry over; the Secret `cloud-credentials` that is \
     there is used, or say --secret-file in place of --no-secret",
    "`bowline backup get -n NAMESPACE`, then a backup and a restore of something small",
    "delete the Deployment velero when you are sure; until then `bowline migrate check --back` \
     says whether you can go back",
];

/// How to switch back to Velero.
pub(super) const BACK: &[&str] = &[
    "`bowline uninstall -n NAMESPACE`, which keeps backups, schedules and locations",
    "`kubectl scale deployment velero -n NAMESPACE --replicas=1`, or install Velero again",
];

/// Something that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Finding {
    pub(super) verdict: Verdict,
    /// What was found.
    pub(super) what: String,
    /// What becomes of it.
    pub(super) why: String,
}

/// Whether something carries over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Verdict {
    Carries,
    Differs,
    Stays,
}

fn finding(verdict: Verdict, what: impl Into<String>, why: impl Into<String>) -> Finding {
    Finding { verdict, what: what.into(), why: why.into() }
}

/// What becomes of an installation of Velero.
pub(super) fn forth(facts: &Facts, open: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !open.is_empty() {
        let why = "Bowline would fail what Velero has begun; wait until they have ended";
        findings.push(finding(Verdict::Stays, open_runs::named(open), why));
    }
    counted(&mut findings, facts);
    match &facts.velero {
        None => findings.push(finding(
            Verdict::Differs,
            "no Deployment `velero`",
            "flags and plugins of the server could not be looked at",
        )),
        Some(server) => {
            plugins(&mut findings, server);
            flags(&mut findings, server);
        }
    }
    lacking(&mut findings, facts);
    findings
}

/// What needs no more than the same definitions and buckets.
fn counted(findings: &mut Vec<Finding>, facts: &Facts) {
    let backups = facts.backups.len();
    for (count, noun, why) in [
        (backups, "backups", "listed, described, restored, deleted, and expire as before"),
        (facts.schedules.len(), "schedules", "go on as before"),
        (facts.locations.len(), "backup locations", ""),
        (facts.snapshot_locations.len(), "snapshot locations", ""),
    ] {
        if count > 0 {
            findings.push(finding(Verdict::Carries, format!("{count} {noun}"), why));
        }
    }
}

fn plugins(findings: &mut Vec<Finding>, server: &Server) {
    for image in &server.plugins {
        let why = "the same binary works here; check it with `bowline plugin inspect`";
        findings.push(finding(Verdict::Carries, format!("plugin {image}"), why));
    }
    if server.plugins.iter().any(|image| image.contains("velero-plugin-for-aws")) {
        findings.push(finding(
            Verdict::Differs,
            "backup locations of the provider aws",
            "they need no plugin here; the plugin is used for as long as it is installed",
        ));
    }
}

/// Which flags of Velero's server ours takes.
fn flags(findings: &mut Vec<Finding>, server: &Server) {
    for words in with_values(&server.flags) {
        let taken = server::Line::try_parse_from(std::iter::once("server").chain(words.clone()));
        let flag = words.join(" ");
        let name = flag.split(['=', ' ']).next().unwrap_or(&flag);
        match taken {
            Ok(line) if !line.notes().is_empty() => findings.push(finding(
                Verdict::Differs,
                format!("server flag {flag}"),
                line.notes().join("; "),
            )),
            Ok(_) => findings.push(finding(Verdict::Carries, format!("server flag {flag}"), "")),
            Err(_) if is_harmless(name) => findings.push(finding(
                Verdict::Differs,
                format!("server flag {flag}"),
                "not needed here: leave it out",
            )),
            Err(_) => findings.push(finding(
                Verdict::Stays,
                format!("server flag {flag}"),
                "this version does not have it; leave it out if you can do without",
            )),
        }
    }
}

/// Each flag with the value that follows it as a word of its own, if one does.
fn with_values(words: &[String]) -> Vec<Vec<&str>> {
    let mut flags: Vec<Vec<&str>> = Vec::new();
    for word in words {
        match flags.last_mut() {
            Some(flag) if !word.starts_with('-') => flag.push(word),
            _ => flags.push(vec![word]),
        }
    }
    flags
}

/// Flags that tune what is done in another way here.
fn is_harmless(name: &str) -> bool {
    [
        "--uploader-type",
        "--client-qps",
        "--client-burst",
        "--disable-informer-cache",
        "--max-concurrent-k8s-connections",
        "--profiler-address",
        "--features",
    ]
    .contains(&name)
}

/// Methods that this version does not have.
fn lacking(findings: &mut Vec<Finding>, facts: &Facts) {
    const LACKS: &str = "this version has no file-system backup";
    const MOVES: &str = "this version has no data mover";
    if facts.has_node_agent {
        findings.push(finding(
            Verdict::Stays,
            "the node agent",
            format!("{LACKS} and no data mover, which it is for; leave it for Velero"),
        ));
    }
    for (count, noun, why) in [
        (facts.pod_volume_backups, "PodVolumeBackups", LACKS),
        (facts.data_uploads, "DataUploads", MOVES),
        (facts.repositories, "BackupRepositories", LACKS),
    ] {
        if count > 0 {
            let why = format!("{why}: data in them can be restored by Velero only");
            findings.push(finding(Verdict::Stays, format!("{count} {noun}"), why));
        }
    }
    for schedule in &facts.schedules {
        for why in methods(&schedule.spec.template) {
            let what = format!("schedule {}", schedule.name_any());
            let why = format!("{why}: its backups would tell so as errors");
            findings.push(finding(Verdict::Stays, what, why));
        }
    }
    if let Some(server) = &facts.velero {
        for (flag, why) in
            [("--default-volumes-to-fs-backup", LACKS), ("--default-snapshot-move-data", MOVES)]
        {
            let says_so = |word: &String| word == flag || *word == format!("{flag}=true");
            if server.flags.iter().any(says_so) {
                let why = format!("{why}: volumes that are saved in no other way would be told");
                findings.push(finding(Verdict::Stays, format!("the default {flag}"), why));
            }
        }
    }
}

/// What a backup wants that this version does not have.
fn methods(spec: &BackupSpec) -> Vec<&'static str> {
    let mut methods = Vec::new();
    if spec.default_volumes_to_fs_backup == Some(true) {
        methods.push("it copies volumes file by file, which this version cannot");
    }
    if spec.snapshot_move_data == Some(true) {
        methods.push("it moves the data of snapshots, which this version cannot");
    }
    methods
}

/// Whether Velero can take over from an installation of ours.
pub(super) fn back(facts: &Facts, open: &[String]) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !open.is_empty() {
        let why = "Velero would mark them as failed and leave behind what they have begun; wait \
                   until they have ended, or cancel them";
        findings.push(finding(Verdict::Stays, open_runs::named(open), why));
    }
    counted(&mut findings, facts);
    if facts.volume_plugin_backups > 0 {
        findings.push(finding(
            Verdict::Differs,
            format!("{} VolumePluginBackups", facts.volume_plugin_backups),
            "Velero does not know them and does not need them; the snapshots that they are of are \
             in its own records, too",
        ));
    }
    let running = |server: &Option<Server>| server.as_ref().is_some_and(|one| one.replicas > 0);
    if running(&facts.bowline) && running(&facts.velero) {
        findings.push(finding(
            Verdict::Stays,
            "both servers are wanted in this namespace",
            "two servers work on the same resources; stop one of them",
        ));
    }
    findings
}

#[cfg(test)]
mod tests {
    use bowline_api::{Schedule, ScheduleSpec};

    use super::*;

    fn server(flags: &[&str], plugins: &[&str]) -> Server {
        let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        Server { replicas: 1, flags: texts(flags), plugins: texts(plugins) }
    }

    fn of<'a>(findings: &'a [Finding], what: &str) -> &'a Finding {
        findings.iter().find(|one| one.what == what).unwrap_or_else(|| panic!("{findings:#?}"))
    }

    #[test]
    fn flags_are_judged_by_what_our_server_takes() {
        let facts = Facts {
            velero: Some(server(
                &["--concurrent-backups=4", "--features=EnableCSI", "--teleport=true"],
                &[],
            )),
            ..Facts::default()
        };
        let found = forth(&facts, &[]);
        assert_eq!(of(&found, "server flag --concurrent-backups=4").verdict, Verdict::Carries);
        assert_eq!(of(&found, "server flag --teleport=true").verdict, Verdict::Stays);
        assert_ne!(of(&found, "server flag --features=EnableCSI").verdict, Verdict::Stays);
    }

    #[test]
    fn a_value_that_is_a_word_of_its_own_belongs_to_the_flag_before_it() {
        let flags = ["--concurrent-backups", "4", "--features", "EnableCSI", "--teleport", "far"];
        let facts = Facts { velero: Some(server(&flags, &[])), ..Facts::default() };
        let found = forth(&facts, &[]);
        assert_eq!(of(&found, "server flag --concurrent-backups 4").verdict, Verdict::Carries);
        assert_ne!(of(&found, "server flag --features EnableCSI").verdict, Verdict::Stays);
        assert_eq!(of(&found, "server flag --teleport far").verdict, Verdict::Stays);
        assert_eq!(found.len(), 3, "{found:#?}");
    }

    #[test]
    fn what_we_lack_is_told_wherever_it_is_asked_for() {
        let mut schedule = Schedule::new("nightly", ScheduleSpec::default());
        schedule.spec.template.snapshot_move_data = Some(true);
        let facts = Facts {
            velero: Some(server(
                &["--default-volumes-to-fs-backup"],
                &["x/velero-plugin-for-aws:v1"],
            )),
            has_node_agent: true,
            schedules: vec![schedule],
            pod_volume_backups: 3,
            ..Facts::default()
        };
        let found = forth(&facts, &["backup a (InProgress)".to_owned()]);
        for what in [
            "backup a (InProgress)",
            "the node agent",
            "3 PodVolumeBackups",
            "schedule nightly",
            "the default --default-volumes-to-fs-backup",
        ] {
            assert_eq!(of(&found, what).verdict, Verdict::Stays, "{what}");
        }
        assert_eq!(of(&found, "1 schedules").verdict, Verdict::Carries);
        assert_eq!(of(&found, "plugin x/velero-plugin-for-aws:v1").verdict, Verdict::Carries);
    }

    #[test]
    fn nobody_goes_back_while_a_run_is_open() {
        let facts = Facts { volume_plugin_backups: 2, ..Facts::default() };
        let hinders =
            |found: &[Finding]| found.iter().any(|finding| finding.verdict == Verdict::Stays);
        assert!(!hinders(&back(&facts, &[])));
        assert!(hinders(&back(&facts, &["backup a (InProgress)".to_owned()])));
        let both =
            Facts { velero: Some(server(&[], &[])), bowline: Some(server(&[], &[])), ..facts };
        assert!(hinders(&back(&both, &[])));
    }
}
