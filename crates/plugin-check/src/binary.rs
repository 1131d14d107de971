//! The rules for a binary as a whole.

use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bowline_plugin::Kind;
use bowline_plugin_host::{Options, Plugin, Process, Registry, list_plugins_of};
use bowline_plugin_wire::client;

use super::rule::{CheckSubject, HOLDS, Rule, RuleFailure, RuleOutcome, RuleRunner};

const RULES: &[Rule<Binary>] = &[
    // The binary has already been started and has listed its plugins, or there would be nothing to
    // check.
    Rule::new("sends its handshake in time and lists its plugins", |_| Box::pin(ready(HOLDS))),
    Rule::new("lists only plugins that are valid and distinct", |binary| {
        Box::pin(ready(binary.lists_only_valid_plugins()))
    }),
    Rule::new("lists nothing that Velero rejects, unless requested", |binary| {
        Box::pin(binary.lists_nothing_that_velero_refuses())
    }),
    Rule::new("stops on request", |binary| Box::pin(binary.stops_on_request())),
    Rule::new("can run twice at once", |binary| Box::pin(binary.runs_in_two_processes())),
];

struct Binary {
    command: PathBuf,
    options: Arc<Options>,
    problems: Vec<String>,
}

impl CheckSubject for Binary {
    fn plugin(&self) -> Option<&Plugin> {
        None
    }
}

pub(super) async fn check(
    runner: &mut RuleRunner<'_>,
    command: &Path,
    options: &Arc<Options>,
    registry: &Registry,
) {
    let mut binary = Binary {
        command: command.to_owned(),
        options: Arc::clone(options),
        problems: registry.problems().iter().map(|problem| problem.reason.clone()).collect(),
    };
    runner.run_rules(RULES, &mut binary).await;
}

impl Binary {
    fn lists_only_valid_plugins(&self) -> RuleOutcome {
        no_problems(&self.problems)
    }

    async fn lists_nothing_that_velero_refuses(&self) -> RuleOutcome {
        let options = Options { announces_own_kinds: false, ..Options::clone(&self.options) };
        let listing = list_plugins_of(&self.command, &options).await;
        let listing = listing.map_err(|failure| RuleFailure::Broken(failure.reason))?;
        let refused = listing.into_iter().filter_map(|listed| match listed {
            Ok((Kind::VolumeSnapshotterV2, name)) => Some(format!(
                "Velero does not know the kind of {} {name}",
                Kind::VolumeSnapshotterV2
            )),
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        });
        no_problems(&refused.collect::<Vec<_>>())
    }

    async fn stops_on_request(&self) -> RuleOutcome {
        let process = self.start().await?;
        let limit = self.options.limits.stop;
        let shutdown = async {
            client::shutdown(process.connection()).await;
            process.wait_for_end(limit).await
        };
        match tokio::time::timeout(limit, shutdown).await.ok().flatten() {
            Some(_) => HOLDS,
            None => Err(RuleFailure::Broken(format!(
                "the plugin still ran {} s after Shutdown and was killed",
                limit.as_secs_f32()
            ))),
        }
    }

    async fn runs_in_two_processes(&self) -> RuleOutcome {
        let (first_process, second_process) = match tokio::join!(self.start(), self.start()) {
            (Ok(first_process), Ok(second_process)) => (first_process, second_process),
            (Ok(alone), Err(unmet)) | (Err(unmet), Ok(alone)) => {
                alone.stop().await;
                return Err(unmet);
            }
            (Err(unmet), Err(_)) => return Err(unmet),
        };
        let (first, second) = tokio::join!(
            client::list_plugins(first_process.connection()),
            client::list_plugins(second_process.connection())
        );
        tokio::join!(first_process.stop(), second_process.stop());
        if first? == second? {
            HOLDS
        } else {
            Err(RuleFailure::broken("the two processes list different plugins"))
        }
    }

    async fn start(&self) -> Result<Process, RuleFailure> {
        let started = Process::start(&self.command, &self.options).await;
        started.map_err(|error| RuleFailure::Broken(bowline_plugin::error_chain(&error)))
    }
}

fn no_problems(problems: &[String]) -> RuleOutcome {
    if problems.is_empty() { HOLDS } else { Err(RuleFailure::Broken(problems.join("; "))) }
}
