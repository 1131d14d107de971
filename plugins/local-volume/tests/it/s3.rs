//! A repository in a bucket.

use std::fs;

use bowline_plugin_sdk::VolumeSnapshotter as _;
use bowline_testbed::{Bed, S3};

use crate::listing::{self, assert_same, names};
use crate::sample;
use crate::test_env::{PASSWORD, TestEnv};

#[tokio::test(flavor = "multi_thread")]
async fn volume_round_trips_through_a_bucket() {
    let bed = Bed::new().unwrap();
    let s3 = S3::start(&bed).await.unwrap();
    let bucket = s3.create_bucket("bucket").unwrap();
    let keys = s3.credentials();
    let file = bed.dir().join("credentials");
    let text = format!(
        "RUSTIC_PASSWORD={PASSWORD}\nAWS_ACCESS_KEY_ID={}\nAWS_SECRET_ACCESS_KEY={}\n",
        keys.access_key, keys.secret_key
    );
    fs::write(&file, text).unwrap();
    let env = TestEnv::with(&[
        ("repository", &format!("s3:{}/bucket/some/prefix", s3.url())),
        ("credentialsFile", file.to_str().unwrap()),
        ("passwordFile", ""),
    ])
    .await;
    sample::fill_volume(&env.volume());
    let before = listing::of(&env.volume());
    let snapshot = env.snapshot("r-1").await.unwrap();
    env.plugin.upload_snapshot(&snapshot).await.unwrap();
    let is_ours = |name: &String| name != ".sgwtmp";
    assert_eq!(names(&bucket).into_iter().filter(is_ours).collect::<Vec<_>>(), ["some"]);
    assert_eq!(names(&bucket.join("some/prefix/snapshots")).len(), 1);
    assert_same(&listing::of(&env.restore(&snapshot).await.unwrap()), &before);
    env.plugin.delete_snapshot(&snapshot).await.unwrap();
    assert_eq!(names(&bucket.join("some/prefix/snapshots")), [""; 0]);

    // An error of the service names the place, and no secret.
    fs::remove_dir_all(&bucket).unwrap();
    let other = env.snapshot("r-2").await.unwrap();
    let error = env.plugin.upload_snapshot(&other).await.unwrap_err();
    assert!(error.message().contains("in s3:127.0.0.1/bucket/some/prefix"), "{error}");
    for secret in [PASSWORD, &keys.secret_key] {
        assert!(!error.message().contains(secret), "{error}");
    }
}
