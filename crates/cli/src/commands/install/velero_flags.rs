//! Further flags of `velero install`: those passed on to the server, and those without use here.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, FromArgMatches};

use crate::commands::server;
use crate::velero_flags::{Flag, FlagEffect, IgnoredFlagSet, NO_FILE_BACKUP};

/// Heading of these flags in the help.
pub(super) const SERVER_FLAGS_HEADING: &str = "Server flags (all others after `--`)";
/// Flags of the server, with the same meaning there.
const SERVER_FLAG_IDS: [&str; 6] = [
    "concurrent_backups",
    "item_block_worker_count",
    "default_volumes_to_fs_backup",
    "default_snapshot_move_data",
    "garbage_collection_frequency",
    "schedule_skip_immediately",
];

/// Flags in the form in which the server receives them.
#[derive(Debug, Default)]
pub(super) struct ServerFlags(pub(super) Vec<String>);

impl clap::Args for ServerFlags {
    fn augment_args(command: Command) -> Command {
        let server_command = <server::Args as clap::Args>::augment_args(Command::new("server"));
        let is_shared = |arg: &&Arg| SERVER_FLAG_IDS.contains(&arg.get_id().as_str());
        let arg = |arg: &Arg| arg.clone().help_heading(SERVER_FLAGS_HEADING);
        command.args(server_command.get_arguments().filter(is_shared).map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ServerFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        // The server has its own defaults.
        let is_given = |id: &&&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let given = SERVER_FLAG_IDS.iter().filter(is_given).filter_map(|id| {
            let value = matches.try_get_raw(id).ok()??.next()?.to_str()?;
            Some(format!("--{}={value}", id.replace('_', "-")))
        });
        self.0 = given.collect();
        Ok(())
    }
}

/// Flags of `velero install` without use here.
#[derive(Debug)]
pub(super) struct IgnoredInstallFlags;

impl IgnoredFlagSet for IgnoredInstallFlags {
    fn flags() -> Vec<Flag> {
        const NO_AGENT: FlagEffect = FlagEffect::Unsupported(
            "this version has no node agent, because it has neither file-system backup nor a data \
             mover; omit the flag, and use CSI snapshots or a snapshotter plugin for volumes",
        );
        let mut flags = vec![
            // Existing objects are always updated.
            Flag::switch("apply", FlagEffect::Implied),
            Flag::RESTORE_ONLY,
            Flag::UPLOADER,
            Flag::FEATURES,
            Flag::CACHE,
            Flag::switch(
                "csi-snapshot-early-frequent-polling",
                FlagEffect::NoEffect("Bowline watches snapshots instead of polling them"),
            ),
            Flag::value("pod-volume-operation-timeout", FlagEffect::NoEffect(NO_FILE_BACKUP)),
            Flag::switch("use-node-agent", NO_AGENT),
            Flag::switch("use-node-agent-windows", NO_AGENT),
            Flag::switch("privileged-node-agent", NO_AGENT),
            Flag::switch("node-agent-disable-host-path", NO_AGENT),
        ];
        flags.extend(Flag::REPOSITORIES);
        let values = [
            "node-agent-pod-cpu-request",
            "node-agent-pod-mem-request",
            "node-agent-pod-cpu-limit",
            "node-agent-pod-mem-limit",
            "node-agent-configmap",
            "node-agent-priority-class-name",
            "kubelet-root-dir",
        ];
        flags.extend(values.map(|name| Flag::value(name, NO_AGENT)));
        flags
    }
}
