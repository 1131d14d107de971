use bowline_server::Error;

use crate::bed::{World, shared};

#[tokio::test]
async fn server_shuts_down_cleanly() {
    let mut world = World::start("server-end").await;
    world.s3_location("l").await;
    let files = || std::fs::read_dir(world.path("scratch")).unwrap().count();
    assert_eq!(files(), 1, "a directory with credentials");
    world.end().await.unwrap();
    assert_eq!(std::fs::read_dir(world.path("scratch")).unwrap().count(), 0);
}

#[tokio::test]
async fn failed_start_states_the_reason() {
    let world = World::without_server("server-start").await;
    let start = async |change: &dyn Fn(&mut bowline_server::Options)| {
        let mut options = world.options();
        change(&mut options);
        let client = shared().client().await;
        bowline_server::run(client, options, std::future::pending()).await.unwrap_err()
    };
    let error = start(&|options| options.namespace = "server-nowhere".to_owned()).await;
    assert!(matches!(&error, Error::NoNamespace(name) if name == "server-nowhere"), "{error}");
    let error = start(&|options| options.filesystem_root = Some("/nowhere/at/all".into())).await;
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    let error = start(&|options| options.scratch_dir = "/nowhere/at/all".into()).await;
    assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    let error = start(&|options| options.download_address = "0.0.0.0:0".parse().unwrap()).await;
    assert!(error.to_string().contains("--download-url"), "{error}");
}
