//! Lifetime of a connection and of its process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bowline_api::Backup;
use bowline_plugin::{Class, Code, DeleteItemAction, Encoded, Item, ResourceSelector, Result};
use bowline_plugin_wire::server::Plugins;
use bowline_plugin_wire::{Connection, client};
use futures::StreamExt as _;
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use crate::fake::{Behaviour, Fake, item, name, serve, serve_fake};
use crate::values::backup;

/// Never returns, and reports when it starts and when it is dropped.
struct NeverReturns(mpsc::UnboundedSender<&'static str>);

#[async_trait]
impl DeleteItemAction for NeverReturns {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::default())
    }

    async fn execute(&self, _: &Item, _: &Encoded<Backup>) -> Result<()> {
        struct DropNotifier(mpsc::UnboundedSender<&'static str>);
        impl Drop for DropNotifier {
            fn drop(&mut self) {
                let _ = self.0.send("dropped");
            }
        }
        let _dropped = DropNotifier(self.0.clone());
        self.0.send("begun").unwrap();
        std::future::pending().await
    }
}

fn plugins_that_never_return() -> (Plugins, mpsc::UnboundedReceiver<&'static str>) {
    let (sender, events) = mpsc::unbounded_channel();
    let mut plugins = Plugins::new("x");
    plugins.delete_item_action(name(), Arc::new(NeverReturns(sender))).unwrap();
    (plugins, events)
}

#[tokio::test]
async fn missing_socket_is_unavailable_and_named() {
    let error = Connection::unix("/nowhere/socket").await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    let text = "connecting to the plugin at /nowhere/socket: No such file";
    assert!(error.message().starts_with(text), "{error}");
}

#[tokio::test]
async fn abandoned_call_is_dropped_in_the_plugin() {
    let (plugins, mut events) = plugins_that_never_return();
    let plugin = serve(plugins).await;
    let action = client::DeleteItemAction::new(plugin.connection.clone(), name());
    let pod = item(r#"{"kind":"Pod"}"#);
    let call = tokio::spawn(async move { action.execute(&pod, &backup()).await });
    assert_eq!(events.recv().await, Some("begun"));
    call.abort();
    assert_eq!(events.recv().await, Some("dropped"));
    assert_eq!(client::check_health(&plugin.connection).await, Ok(()), "the connection lives on");
}

#[tokio::test]
async fn shutdown_request_stops_the_plugin_and_ends_its_output() {
    let plugin = serve_fake(&Fake::new(Behaviour::Answer)).await;
    let mut output = Box::pin(client::output_stream(&plugin.connection));
    let silence = tokio::time::timeout(Duration::from_millis(200), output.next()).await;
    assert!(silence.is_err(), "it goes on as long as the plugin does");

    client::shutdown(&plugin.connection).await;
    let end = tokio::time::timeout(Duration::from_secs(10), output.next()).await;
    assert_eq!(end, Ok(None));
    plugin.serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn plugin_stops_while_a_call_hangs() {
    let (plugins, mut events) = plugins_that_never_return();
    let plugin = serve(plugins).await;
    let action = client::DeleteItemAction::new(plugin.connection.clone(), name());
    let pod = item(r#"{"kind":"Pod"}"#);
    tokio::spawn(async move { action.execute(&pod, &backup()).await });
    assert_eq!(events.recv().await, Some("begun"));
    client::shutdown(&plugin.connection).await;
    plugin.serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn plugin_stops_when_its_process_is_terminated() {
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
    Plugins::new("x").serve(listener, std::future::ready(())).await.unwrap();
}

#[tokio::test]
async fn broken_connection_is_never_reused_for_another_process() {
    let plugin = serve_fake(&Fake::new(Behaviour::Answer)).await;
    let path = plugin.folder.path().join("socket");
    client::shutdown(&plugin.connection).await;
    plugin.serving.await.unwrap().unwrap();
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(Plugins::new("x").serve(listener, std::future::pending()));

    for _ in 0..3 {
        let error = client::list_plugins(&plugin.connection).await.unwrap_err();
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert!(error.is_undelivered(), "{error}");
    }
    let new_connection = Connection::unix(&path).await.unwrap();
    assert_eq!(client::list_plugins(&new_connection).await, Ok(vec![]));
}

#[test]
fn call_in_flight_when_the_plugin_dies_fails_as_transient() {
    let (host, process) =
        (tokio::runtime::Runtime::new().unwrap(), tokio::runtime::Runtime::new().unwrap());
    let (plugins, mut events) = plugins_that_never_return();
    let plugin = process.block_on(serve(plugins));
    let path = plugin.folder.path().join("socket");
    let call = host.spawn(async move {
        let connection = Connection::unix(path).await.unwrap();
        let action = client::DeleteItemAction::new(connection, name());
        action.execute(&item(r#"{"kind":"Pod"}"#), &backup()).await
    });
    assert_eq!(events.blocking_recv(), Some("begun"));
    process.shutdown_background();
    let error = host.block_on(call).unwrap().unwrap_err();
    assert_eq!(error.class(), Class::Transient, "{error:?}");
}
