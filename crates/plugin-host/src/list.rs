//! Asks binaries for their plugins.
//!
//! A machine that is busy when a server starts must not cost the server a plugin for as long as it
//! runs. So a binary that did not answer, or ended, is asked again after a pause. Files that cannot
//! be plugins are not retried.

use std::path::{Path, PathBuf};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use bowline_plugin::Class;
use bowline_plugin_wire::client;
use futures::StreamExt as _;

use crate::process::Process;
use crate::registry::{ListedEntry, Registry};
use crate::{Options, discover};

/// Number of binaries that are asked at a time.
const CONCURRENT_STARTS: usize = 4;
/// Retries for one binary.
const RETRIES: ExponentialBuilder =
    ExponentialBuilder::new().with_min_delay(Duration::from_secs(1)).with_max_times(5);

/// Failure of a binary to list its plugins.
#[derive(Debug)]
pub struct ListingFailure {
    /// The reason, phrased about the binary: "it ended before its handshake".
    pub reason: String,
    /// True if a retry may succeed.
    pub is_transient: bool,
}

type Listing = Result<Vec<ListedEntry>, ListingFailure>;

/// All plugins of the plugin folder.
pub(crate) async fn list_all(options: &Options) -> Registry {
    let mut registry = Registry::default();
    let files = discover::walk(&options.plugin_dir);
    for (path, error) in &files.unreadable {
        registry.report_unlisted(path, format!("the directory cannot be read: {error}"));
    }
    for path in &files.ignored {
        tracing::warn!(path = %path.display(), "file ignored: not executable, so not a plugin");
    }
    // Concurrently, so that a binary that hangs delays few others; the results are kept in order.
    let mut listings: Vec<Listing> = futures::stream::iter(&files.executables)
        .map(|path| list_plugins_of(path, options))
        .buffered(CONCURRENT_STARTS)
        .collect()
        .await;
    let retries = retry_failed_listings(&files.executables, &mut listings, options);
    // Binaries that are still not listed keep their last error.
    let _ = tokio::time::timeout(options.limits.relist, retries).await;
    for (path, listing) in files.executables.iter().zip(listings) {
        match listing {
            Ok(listing) => registry.add(path, &listing),
            Err(ListingFailure { reason, .. }) if discover::is_program(path) => {
                registry.report_unlisted(path, reason);
            }
            Err(ListingFailure { reason, .. }) => registry.report(path, reason),
        }
    }
    registry
}

/// Retries the binaries that failed transiently.
async fn retry_failed_listings(commands: &[PathBuf], listings: &mut [Listing], options: &Options) {
    for pause in RETRIES.build() {
        let mut to_retry = Vec::new();
        for (index, (command, listing)) in commands.iter().zip(&*listings).enumerate() {
            match listing {
                Err(ListingFailure { reason, is_transient: true })
                    if discover::is_program(command) =>
                {
                    let command = command.display();
                    tracing::warn!("plugin {command}: {reason}; retrying in {pause:?}");
                    to_retry.push(index);
                }
                _ => {}
            }
        }
        if to_retry.is_empty() {
            return;
        }
        tokio::time::sleep(pause).await;
        let retries = to_retry.into_iter().map(|index| async move {
            let listing = list_plugins_of(&commands[index], options).await;
            (index, listing)
        });
        let mut results = futures::stream::iter(retries).buffer_unordered(CONCURRENT_STARTS);
        while let Some((index, listing)) = results.next().await {
            listings[index] = listing;
        }
    }
}

/// Starts a binary, asks for its plugins, and ends it.
pub async fn list_plugins_of(
    command: &Path,
    options: &Options,
) -> Result<Vec<ListedEntry>, ListingFailure> {
    let process = Process::start(command, options).await.map_err(|error| ListingFailure {
        reason: bowline_plugin::error_chain(&error),
        is_transient: !error.is_permanent(),
    })?;
    let request = client::list_plugins(process.connection());
    let limit = options.limits.metadata;
    let listing = match tokio::time::timeout(limit, request).await {
        Ok(Ok(listing)) => Ok(listing),
        Ok(Err(error)) => Err(ListingFailure {
            reason: format!("the binary cannot list its plugins: {error}"),
            is_transient: matches!(error.class(), Class::Transient | Class::Unclear),
        }),
        Err(_) => Err(ListingFailure {
            reason: format!("the binary did not list its plugins within {} s", limit.as_secs_f32()),
            is_transient: true,
        }),
    };
    process.stop().await;
    // The command in a listing is ignored: the path is the host's choice, not the plugin's.
    let entry = |listed: Result<client::ListedPlugin, client::InvalidListing>| {
        listed.map(|listed| (listed.kind, listed.name))
    };
    Ok(listing?.into_iter().map(entry).collect())
}
