//! A repository in a bucket.

use std::fs;

use bowline_plugin_sdk::VolumeSnapshotter as _;
use bowline_testbed::{Bed, S3};

use crate::listing::{self, assert_same, names};
use crate::place::{PASSWORD, Place};
use crate::sample;

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_survives_in_a_bucket() {
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
    let place = Place::with(&[
        ("repository", &format!("s3:{}/bucket/some/prefix", s3.url())),
        ("credentialsFile", file.to_str().unwrap()),
        ("passwordFile", ""),
    ])
    .await;
    sample::make(&place.volume());
    let before = listing::of(&place.volume());
    let snapshot = place.snapshot("r-1").await.unwrap();
    place.plugin.upload_snapshot(&snapshot).await.unwrap();
    let is_ours = |name: &String| name != ".sgwtmp";
    assert_eq!(names(&bucket).into_iter().filter(is_ours).collect::<Vec<_>>(), ["some"]);
    assert_eq!(names(&bucket.join("some/prefix/snapshots")).len(), 1);
    assert_same(&listing::of(&place.restore(&snapshot).await.unwrap()), &before);
    place.plugin.delete_snapshot(&snapshot).await.unwrap();
    assert_eq!(names(&bucket.join("some/prefix/snapshots")), [""; 0]);

    // An error of the service names the place, and no secret.
    fs::remove_dir_all(&bucket).unwrap();
    let other = place.snapshot("r-2").await.unwrap();
    let error = place.plugin.upload_snapshot(&other).await.unwrap_err();
    assert!(error.message().contains("in s3:127.0.0.1/bucket/some/prefix"), "{error}");
    for secret in [PASSWORD, &keys.secret_key] {
        assert!(!error.message().contains(secret), "{error}");
    }
}
