//! The life of a connection and of the process behind it.

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

/// Never comes back, and tells when it begins and when it is dropped.
struct Endless(mpsc::UnboundedSender<&'static str>);

#[async_trait]
impl DeleteItemAction for Endless {
    async fn applies_to(&self) -> Result<ResourceSelector> {
        Ok(ResourceSelector::default())
    }

    async fn execute(&self, _: &Item, _: &Encoded<Backup>) -> Result<()> {
        struct Dropped(mpsc::UnboundedSender<&'static str>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                let _ = self.0.send("dropped");
            }
        }
        let _dropped = Dropped(self.0.clone());
        self.0.send("begun").unwrap();
        std::future::pending().await
    }
}

fn endless() -> (Plugins, mpsc::UnboundedReceiver<&'static str>) {
    let (sender, events) = mpsc::unbounded_channel();
    let mut plugins = Plugins::new("x");
    plugins.delete_item_action(name(), Arc::new(Endless(sender))).unwrap();
    (plugins, events)
}

#[tokio::test]
async fn a_socket_that_is_not_there_is_unavailable_and_named() {
    let error = Connection::unix("/nowhere/socket").await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    let text = "connecting to the plugin at /nowhere/socket: No such file";
    assert!(error.message().starts_with(text), "{error}");
}

#[tokio::test]
async fn a_call_that_is_given_up_is_dropped_in_the_plugin() {
    let (plugins, mut events) = endless();
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
async fn a_plugin_that_is_told_to_stop_does_and_its_output_ends() {
    let plugin = serve_fake(&Fake::new(Behaviour::Answer)).await;
    let mut output = Box::pin(client::stdio(&plugin.connection));
    let silence = tokio::time::timeout(Duration::from_millis(200), output.next()).await;
    assert!(silence.is_err(), "it goes on as long as the plugin does");

    client::shutdown(&plugin.connection).await;
    let end = tokio::time::timeout(Duration::from_secs(10), output.next()).await;
    assert_eq!(end, Ok(None));
    plugin.serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_plugin_stops_even_if_a_call_never_ends() {
    let (plugins, mut events) = endless();
    let plugin = serve(plugins).await;
    let action = client::DeleteItemAction::new(plugin.connection.clone(), name());
    let pod = item(r#"{"kind":"Pod"}"#);
    tokio::spawn(async move { action.execute(&pod, &backup()).await });
    assert_eq!(events.recv().await, Some("begun"));
    client::shutdown(&plugin.connection).await;
    plugin.serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_plugin_stops_when_its_own_process_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
    Plugins::new("x").serve(listener, std::future::ready(())).await.unwrap();
}

#[tokio::test]
async fn a_connection_that_broke_stays_broken_even_if_another_process_listens_there() {
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
    let anew = Connection::unix(&path).await.unwrap();
    assert_eq!(client::list_plugins(&anew).await, Ok(vec![]));
}

#[test]
fn a_call_under_way_when_the_plugin_dies_fails_as_something_that_may_pass() {
    let (host, process) =
        (tokio::runtime::Runtime::new().unwrap(), tokio::runtime::Runtime::new().unwrap());
    let (plugins, mut events) = endless();
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
