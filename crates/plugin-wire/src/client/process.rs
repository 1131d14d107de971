//! Calls to a process, not to one of its plugins.

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

/// A plugin that a binary lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedPlugin {
    /// The command that starts the plugin: usually the binary itself, as it was called.
    pub command: String,
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub name: Name,
}

/// An invalid entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidListing {
    /// Unknown kind.
    #[error("plugin {name}: {source}")]
    Kind {
        /// The name, not validated.
        name: String,
        /// The kind.
        source: UnknownKind,
    },
    /// Invalid name.
    #[error("{kind}: {source}")]
    Name {
        /// The kind.
        kind: Kind,
        /// The name.
        source: InvalidName,
    },
    /// No command.
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

/// Asks the process to end. Go plugins end without an answer, so none is returned here either;
/// watch the process, and set a limit: a process may also never answer.
pub async fn shutdown(connection: &Connection) {
    let _ = GrpcControllerClient::new(connection.channel()).shutdown(plugin::Empty {}).await;
}

/// Checks the health of the process.
pub async fn check_health(connection: &Connection) -> Result<()> {
    let request = HealthCheckRequest { service: SERVICE.to_owned() };
    let mut stub = HealthClient::new(connection.channel());
    match stub.check(request).await.map_err(to_error)?.into_inner().status() {
        ServingStatus::Serving => Ok(()),
        other => Err(Error::new(Code::Unavailable, format!("the plugin is {other:?}"))),
    }
}

/// The output channel that a plugin printed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputChannel {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// A piece of output of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessOutput {
    /// The channel that the plugin printed to.
    pub channel: OutputChannel,
    /// The bytes, not split into lines.
    pub bytes: Bytes,
}

/// Output of a plugin after its handshake, for as long as the plugin lives.
///
/// Read this stream once per process, to its end, in its own task: a Go plugin blocks when its
/// output is not read, and answers the call only with the first bytes. The stream ends with the
/// process; if a plugin does not have the service, the stream ends at once.
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

/// `None` for channels other than these two, which do not exist.
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
            (["/p", "ObjectStore", "b"], "ObjectStore: `b` is not a plugin name"),
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
