//! The object store of a plugin: Velero's plugin for S3, unmodified.

use std::os::unix::fs::symlink;

use bowline_plugin_host::{Host, Options};
use bowline_store::backend::BuiltIn;
use bowline_store::{Guarantee, open};
use bowline_testbed::program::{self, Program};

use crate::conformance::{Subject, assert_conforms};
use crate::s3::{BUCKET, RealS3};

#[tokio::test]
async fn veleros_aws_plugin_conforms_and_wins_over_the_built_in() {
    let real = RealS3::start().await;
    let [plugin] = program::locate([Program::VeleroPluginForAws]).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    symlink(plugin, folder.path().join("velero-plugin-for-aws")).unwrap();
    let plugin_dir = folder.path().to_owned();
    let host = Host::discover(Options { plugin_dir, ..Options::default() }).await;
    let config = real.config(&[]);
    let plugin = host.object_store("aws", config.clone()).await.unwrap();
    let backend = open("aws", &config, plugin, &BuiltIn::default()).await.unwrap();
    // Difference from the built-in backend: it can only check before it creates.
    let subject = Subject { backend, bucket: BUCKET, guarantee: Guarantee::CheckedFirst };
    assert_conforms(&subject).await;
    let built_in = open("velero.io/aws", &config, None, &BuiltIn::default()).await.unwrap();
    let creation = built_in.create_object(BUCKET, "a", bytes::Bytes::new()).await.unwrap();
    assert_eq!(creation, bowline_store::Creation::Created(Guarantee::Atomic));
    drop((subject, built_in));
    host.shut_down().await;
}
