//! What is asked of a process, not of one of its plugins.

use bowline_plugin::{Code, Error, InvalidName, Kind, Name, Result, UnknownKind};
use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _, future, stream};

use crate::Connection;
use crate::handshake::SERVICE;
use crate::proto::generated::{Empty, PluginIdentifier, plugin_lister_client::PluginListerClient};
use crate::proto::health::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use crate::proto::plugin::{
    self, grpc_controller_client::GrpcControllerClient, grpc_stdio_client::GrpcStdioClient,
    stdio_data,
};
use crate::status::to_error;

/// A plugin that a binary says it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPlugin {
    /// What to start in order to get it: usually the binary itself, as it was called.
    pub command: String,
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
}

/// An entry of a listing that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidListing {
    /// We do not know the kind.
    #[error("plugin {name}: {source}")]
    Kind {
        /// The name, not checked.
        name: String,
        /// The kind.
        source: UnknownKind,
    },
    /// The name is none.
    #[error("{kind}: {source}")]
    Name {
        /// The kind.
        kind: Kind,
        /// The name.
        source: InvalidName,
    },
    /// It does not say what to start.
    #[error("{kind} {name} has no command")]
    Command {
        /// The kind.
        kind: Kind,
        /// The name.
        name: Name,
    },
}

/// The plugins of a binary in its own order, which is the order of their execution.
pub async fn list_plugins(
    connection: &Connection,
) -> Result<Vec<Result<ListedPlugin, InvalidListing>>> {
    let mut stub = PluginListerClient::new(connection.channel());
    let answer = stub.list_plugins(Empty {}).await.map_err(to_error)?.into_inner();
    Ok(answer.plugins.into_iter().map(parse_listed).collect())
}

fn parse_listed(entry: PluginIdentifier) -> Result<ListedPlugin, InvalidListing> {
    let PluginIdentifier { command, kind, name } = entry;
    let kind: Kind =
        kind.parse().map_err(|source| InvalidListing::Kind { name: name.clone(), source })?;
    let name = name.parse().map_err(|source| InvalidListing::Name { kind, source })?;
    if command.is_empty() {
        return Err(InvalidListing::Command { kind, name });
    }
    Ok(ListedPlugin { command, kind, name })
}

/// Asks the process to end. Go plugins end without an answer, so there is none here either; watch the
/// process, and set a limit: one that never answers is possible too.
pub async fn shutdown(connection: &Connection) {
    let _ = GrpcControllerClient::new(connection.channel()).shutdown(plugin::Empty {}).await;
}

/// Asks the process whether it is well.
pub async fn check_health(connection: &Connection) -> Result<()> {
    let request = HealthCheckRequest { service: SERVICE.to_owned() };
    let mut stub = HealthClient::new(connection.channel());
    match stub.check(request).await.map_err(to_error)?.into_inner().status() {
        ServingStatus::Serving => Ok(()),
        other => Err(Error::new(Code::Unavailable, format!("the plugin is {other:?}"))),
    }
}

/// Which of the two it was printed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputChannel {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Something that a plugin printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessOutput {
    /// Where to.
    pub channel: OutputChannel,
    /// What: not lines, just bytes.
    pub bytes: Bytes,
}

/// What a plugin prints after its handshake, for as long as it lives.
///
/// To be read once per process, to its end, in a task of its own: a Go plugin blocks when nobody
/// reads, and answers the call only with the first bytes. The stream ends with the process; that a
/// plugin has no such stream is an end, too.
pub fn output_stream(
    connection: &Connection,
) -> impl Stream<Item = Result<ProcessOutput>> + Send + use<> {
    let mut stub = GrpcStdioClient::new(connection.channel())
        .max_decoding_message_size(connection.message_limit());
    let call = async move {
        match stub.stream_stdio(()).await.map_err(to_error) {
            Ok(answer) => Ok(Some(answer.into_inner().map_err(to_error))),
            Err(error) if matches!(error.code(), Code::Unimplemented | Code::Unavailable) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    };
    stream::once(call)
        .try_filter_map(future::ok)
        .try_flatten()
        .try_filter_map(|data| future::ok(parse_output(data)))
}

/// Other channels than these two do not exist.
fn parse_output(data: plugin::StdioData) -> Option<ProcessOutput> {
    let channel = match data.channel() {
        stdio_data::Channel::Stdout => OutputChannel::Stdout,
        stdio_data::Channel::Stderr => OutputChannel::Stderr,
        stdio_data::Channel::Invalid => return None,
    };
    Some(ProcessOutput { channel, bytes: data.data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listing_is_parsed_entry_by_entry() {
        for (entry, expected) in [
            (["/p", "ObjectStore", "a.io/b"], "Ok"),
            (["/p", "PluginLister", "a.io/b"], "plugin a.io/b: unknown plugin kind `PluginLister`"),
            (["/p", "ObjectStore", "b"], "ObjectStore: `b` is no name of a plugin"),
            (["", "ObjectStore", "a.io/b"], "ObjectStore a.io/b has no command"),
        ] {
            let [command, kind, name] = entry.map(str::to_owned);
            let got = match parse_listed(PluginIdentifier { command, kind, name }) {
                Ok(_) => "Ok".to_owned(),
                Err(error) => error.to_string(),
            };
            assert!(got.starts_with(expected), "{got}");
        }
    }
}
