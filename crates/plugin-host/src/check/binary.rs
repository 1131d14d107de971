//! The rules for a binary as a whole.

use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bowline_plugin::Kind;
use bowline_plugin_wire::client;

use super::rule::{HOLDS, Judge, Outcome, Rule, Subject, Unmet};
use crate::list::list;
use crate::process::Process;
use crate::registry::Registry;
use crate::{Options, Plugin};

const RULES: &[Rule<Binary>] = &[
    // It has been started and asked already, or there would be nothing to check.
    Rule::new("gives its handshake in time and lists its plugins", |_| Box::pin(ready(HOLDS))),
    Rule::new("lists only plugins that are valid and distinct", |binary| {
        Box::pin(ready(binary.lists_only_valid_plugins()))
    }),
    Rule::new("lists nothing that Velero refuses, unless it is asked to", |binary| {
        Box::pin(binary.lists_nothing_that_velero_refuses())
    }),
    Rule::new("stops when it is asked to", |binary| Box::pin(binary.stops())),
    Rule::new("can run twice at once", |binary| Box::pin(binary.runs_twice())),
];

struct Binary {
    command: PathBuf,
    options: Arc<Options>,
    problems: Vec<String>,
}

impl Subject for Binary {
    fn plugin(&self) -> Option<&Plugin> {
        None
    }
}

pub(super) async fn check(
    judge: &mut Judge<'_>,
    command: &Path,
    options: &Arc<Options>,
    registry: &Registry,
) {
    let mut binary = Binary {
        command: command.to_owned(),
        options: Arc::clone(options),
        problems: registry.problems().iter().map(|problem| problem.reason.clone()).collect(),
    };
    judge.judge(RULES, &mut binary).await;
}

impl Binary {
    fn lists_only_valid_plugins(&self) -> Outcome {
        none_of(&self.problems)
    }

    async fn lists_nothing_that_velero_refuses(&self) -> Outcome {
        let options = Options { announces_own_kinds: false, ..Options::clone(&self.options) };
        let listing = list(&self.command, &options).await;
        let listing = listing.map_err(|why_not| Unmet::Broken(why_not.reason))?;
        let refused = listing.into_iter().filter_map(|listed| match listed {
            Ok((Kind::VolumeSnapshotterV2, name)) => Some(format!(
                "Velero does not know the kind of {} {name}",
                Kind::VolumeSnapshotterV2
            )),
            Ok(_) => None,
            Err(reason) => Some(reason),
        });
        none_of(&refused.collect::<Vec<_>>())
    }

    async fn stops(&self) -> Outcome {
        let process = self.start().await?;
        let limit = self.options.limits.stop;
        let asked = async {
            client::shutdown(process.connection()).await;
            process.ends_within(limit).await
        };
        match tokio::time::timeout(limit, asked).await.ok().flatten() {
            Some(_) => HOLDS,
            None => Err(Unmet::Broken(format!(
                "it still ran {} s after Shutdown and was killed",
                limit.as_secs_f32()
            ))),
        }
    }

    async fn runs_twice(&self) -> Outcome {
        let (one, other) = match tokio::join!(self.start(), self.start()) {
            (Ok(one), Ok(other)) => (one, other),
            (Ok(alone), Err(unmet)) | (Err(unmet), Ok(alone)) => {
                alone.stop().await;
                return Err(unmet);
            }
            (Err(unmet), Err(_)) => return Err(unmet),
        };
        let (first, second) = tokio::join!(
            client::list_plugins(one.connection()),
            client::list_plugins(other.connection())
        );
        tokio::join!(one.stop(), other.stop());
        if first? == second? { HOLDS } else { Err(Unmet::broken("the two list different plugins")) }
    }

    async fn start(&self) -> Result<Process, Unmet> {
        let started = Process::start(&self.command, &self.options).await;
        started.map_err(|error| Unmet::Broken(bowline_plugin::one_line(&error)))
    }
}

fn none_of(problems: &[String]) -> Outcome {
    if problems.is_empty() { HOLDS } else { Err(Unmet::Broken(problems.join("; "))) }
}
