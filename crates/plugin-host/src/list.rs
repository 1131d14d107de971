//! Asks binaries which plugins they have.
//!
//! A machine that is busy when a server starts must not cost it a plugin for as long as it runs. So a binary that did
//! not answer, or ended, is asked again after a pause. What cannot be a plugin is not.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bowline_plugin::Class;
use bowline_plugin_wire::client;
use futures::StreamExt as _;

use crate::process::Process;
use crate::registry::{Listed, Registry};
use crate::{Options, discover};

/// How many binaries are asked at a time.
const STARTED_AT_ONCE: usize = 4;
/// How often one is asked again at most.
const TRIES_AGAIN: usize = 5;
/// The pause before the first time. It doubles.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Why a binary did not list its plugins.
#[derive(Debug)]
pub(crate) struct Unlisted {
    pub(crate) reason: String,
    /// Whether it may be otherwise the next time.
    pub(crate) may_pass: bool,
}

type Listing = Result<Vec<Listed>, Unlisted>;

/// All plugins of the plugin folder.
pub(crate) async fn all(options: &Options) -> Registry {
    let mut registry = Registry::default();
    let found = discover::walk(&options.plugin_dir);
    for (path, error) in &found.unreadable {
        registry.report_unlisted(path, format!("the folder cannot be read: {error}"));
    }
    for path in &found.ignored {
        tracing::warn!(path = %path.display(), "not executable, so no plugin");
    }
    // Side by side, so that one that hangs holds up few; taken in in order.
    let mut listings: Vec<Listing> = futures::stream::iter(&found.executables)
        .map(|path| list(path, options))
        .buffered(STARTED_AT_ONCE)
        .collect()
        .await;
    let again = try_again(&found.executables, &mut listings, options);
    // What was not listed by then has its last reason.
    let _ = tokio::time::timeout(options.limits.relist, again).await;
    for (path, listing) in found.executables.iter().zip(listings) {
        match listing {
            Ok(listing) => registry.add(path, &listing),
            Err(Unlisted { reason, .. }) if discover::is_program(path) => {
                registry.report_unlisted(path, reason);
            }
            Err(Unlisted { reason, .. }) => registry.report(path, reason),
        }
    }
    registry
}

/// Asks those again that did not answer and may do so later.
async fn try_again(commands: &[PathBuf], listings: &mut [Listing], options: &Options) {
    let mut pause = FIRST_PAUSE;
    for _ in 0..TRIES_AGAIN {
        let mut left = Vec::new();
        for (place, (command, listing)) in commands.iter().zip(&*listings).enumerate() {
            match listing {
                Err(Unlisted { reason, may_pass: true }) if discover::is_program(command) => {
                    let command = command.display();
                    tracing::warn!("plugin {command}: {reason}; it is asked again in {pause:?}");
                    left.push(place);
                }
                _ => {}
            }
        }
        if left.is_empty() {
            return;
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
        let asked = left.into_iter().map(|place| async move {
            let listing = list(&commands[place], options).await;
            (place, listing)
        });
        let mut asked = futures::stream::iter(asked).buffer_unordered(STARTED_AT_ONCE);
        while let Some((place, listing)) = asked.next().await {
            listings[place] = listing;
        }
    }
}

/// Starts a binary, asks what it has, and ends it.
pub(crate) async fn list(command: &Path, options: &Options) -> Listing {
    let process = Process::start(command, options).await.map_err(|error| Unlisted {
        reason: bowline_plugin::one_line(&error),
        may_pass: !error.is_permanent(),
    })?;
    let asked = client::list_plugins(process.connection());
    let limit = options.limits.metadata;
    let listing = match tokio::time::timeout(limit, asked).await {
        Ok(Ok(listing)) => Ok(listing),
        Ok(Err(error)) => Err(Unlisted {
            reason: format!("it cannot list its plugins: {error}"),
            may_pass: matches!(error.class(), Class::Transient | Class::Unclear),
        }),
        Err(_) => Err(Unlisted {
            reason: format!("it did not list its plugins within {} s", limit.as_secs_f32()),
            may_pass: true,
        }),
    };
    process.stop().await;
    // The command that a listing names is what we started: the path is ours, not the plugin's.
    let entry = |listed: Result<client::Listed, client::InvalidListing>| match listed {
        Ok(listed) => Ok((listed.kind, listed.name)),
        Err(error) => Err(error.to_string()),
    };
    Ok(listing?.into_iter().map(entry).collect())
}
