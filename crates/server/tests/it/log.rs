use std::io::Read as _;
use std::os::unix::fs::symlink;

use bowline_plugin::{Encoded, Item};
use bowline_plugin_host::{Host, Options};
use bowline_server::log::RunLog;
use bowline_testbed::fixture;
use flate2::read::MultiGzDecoder;
use serde_json::json;
use tracing::Instrument as _;

use crate::bed;

/// Lets a plugin, in a process of its own for this run, say something about an item.
async fn run(host: &Host, item: &str, log: &RunLog) {
    let run = host.run();
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": item,
            "namespace": "n",
            "annotations": {"fixture.bowline.io/do": "log=info,log=debug,log=warn"},
        },
    });
    let pod = Item::from_object(&pod).unwrap();
    let backup = serde_json::from_value(json!({"metadata": {"name": "b"}})).unwrap();
    let actions = run.backup_item_actions();
    let action = actions.iter().find(|action| action.name.as_str().ends_with("/bia-v1")).unwrap();
    // As if one of our crates had logged it.
    let span = tracing::info_span!(target: "bowline_server", "backup", backup = item);
    let span = log.attach(span);
    let asked = async { action.plugin.execute(&pod, &Encoded::new(backup)).await.unwrap() };
    asked.instrument(span).await;
    run.shut_down().await;
}

#[tokio::test]
async fn plugin_output_is_in_the_run_log() {
    bed::shared();
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    std::fs::create_dir(&state).unwrap();
    let plugins = folder.path().join("plugins");
    std::fs::create_dir(&plugins).unwrap();
    symlink(fixture::rust_plugins().await.unwrap(), plugins.join("fixture")).unwrap();
    let environment = vec![("FIXTURE_STATE_DIR".into(), state.into())];
    let host =
        Host::discover(Options { plugin_dir: plugins, environment, ..Options::default() }).await;
    let logs = [RunLog::new(), RunLog::new()];
    tokio::join!(run(&host, "one", &logs[0]), run(&host, "two", &logs[1]));
    for (log, item) in logs.iter().zip(["one", "two"]) {
        let mut text = String::new();
        MultiGzDecoder::new(&*log.finish()).read_to_string(&mut text).unwrap();
        let messages: Vec<_> =
            text.lines().filter(|line| line.contains("fixture says hello")).collect();
        assert_eq!(messages.len(), 2, "{text}");
        for (line, level) in messages.iter().zip(["info", "warning"]) {
            assert!(line.contains(&format!("level={level} msg=\"fixture says hello\"")), "{line}");
            assert!(line.contains(&format!(" backup={item} item={item} ")), "{line}");
        }
    }
    host.shut_down().await;
}
