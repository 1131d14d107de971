//! What `velero install` takes besides: flags that it hands to the server, and those that we have no use for.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, FromArgMatches};

use crate::commands::server;
use crate::velero_flags::{Fate, Flag, NO_FILE_BACKUP, Unneeded};

/// Those that are the server's, which say the same there.
const OF_SERVER: [&str; 6] = [
    "concurrent_backups",
    "item_block_worker_count",
    "default_volumes_to_fs_backup",
    "default_snapshot_move_data",
    "garbage_collection_frequency",
    "schedule_skip_immediately",
];

/// Flags that are handed to the server, as they are handed to it.
#[derive(Debug, Default)]
pub(super) struct ServerFlags(pub(super) Vec<String>);

impl clap::Args for ServerFlags {
    fn augment_args(command: Command) -> Command {
        let theirs = <server::Args as clap::Args>::augment_args(Command::new("server"));
        let is_ours = |arg: &&Arg| OF_SERVER.contains(&arg.get_id().as_str());
        let arg = |arg: &Arg| arg.clone().help_heading("Server flags");
        command.args(theirs.get_arguments().filter(is_ours).map(arg))
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
        // The server knows its defaults by itself.
        let is_said = |id: &&&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let said = OF_SERVER.iter().filter(is_said).filter_map(|id| {
            let value = matches.try_get_raw(id).ok()??.next()?.to_str()?;
            Some(format!("--{}={value}", id.replace('_', "-")))
        });
        self.0 = said.collect();
        Ok(())
    }
}

/// The flags of `velero install` that we have no use for.
#[derive(Debug)]
pub(super) struct OfInstall;

impl Unneeded for OfInstall {
    fn flags() -> Vec<Flag> {
        const NO_AGENT: Fate = Fate::Refused(
            "this version has no node agent, because it has neither file-system backup nor a data \
             mover; omit the flag, and use CSI snapshots or a snapshotter plugin for volumes",
        );
        let mut flags = vec![
            // Objects that are there are changed in any case.
            Flag::switch("apply", Fate::Done),
            Flag::RESTORE_ONLY,
            Flag::UPLOADER,
            Flag::FEATURES,
            Flag::CACHE,
            Flag::switch(
                "csi-snapshot-early-frequent-polling",
                Fate::Idle("snapshots are watched, not polled"),
            ),
            Flag::value("pod-volume-operation-timeout", Fate::Idle(NO_FILE_BACKUP)),
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
