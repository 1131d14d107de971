//! A cluster that is rebuilt from its bucket and a recovery file.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use bowline_api::{Backup, BackupStorageLocation, VolumeSnapshotLocation};
use bowline_testbed::s3::{REGION, S3};
use bowline_testbed::{Bed, eventually_blocking};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, ResourceExt as _};
use serde_json::json;

use crate::bowline::CommandResult;
use crate::cluster::{TestEnv, cluster};

/// Time limit of a step. The machine may be busy with a compiler.
const TIMEOUT: Duration = Duration::from_mins(3);
const PASSPHRASE: &str = "correct horse battery staple";
/// A key that was made for tests: a passphrase takes a second to try.
const IDENTITY: &str = "AGE-SECRET-KEY-1U3KRA38FNQVLXZXQ5GJCP9HC5XHHRCZ3CS9DNXZ5KYCV3C84Q7CSS4LV0Q";
const RECIPIENT: &str = "age1munncrq6tvthy5t8wgcmhay78vu3lfzew3g23w68mt74maaghp6sy3st6k";

/// A server as a process. It is killed when this is dropped.
struct Server(Child);

impl Server {
    fn start(env: &TestEnv, folder: &Path) -> Self {
        let at = |flag: &str, name: &str| format!("--{flag}={}", folder.join(name).display());
        let mut command = env.server(&["--metrics-address=0", "--backup-sync-period=1s"]);
        command.args([at("plugin-dir", "plugins"), at("scratch-dir", "scratch")]);
        // Nothing but the Secret of the location opens the bucket.
        for variable in ["AWS_SHARED_CREDENTIALS_FILE", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"] {
            command.env_remove(variable);
        }
        let log = File::options().create(true).append(true).open(folder.join("log")).unwrap();
        Self(command.stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn eventually<T>(what: &str, folder: &Path, mut poll: impl FnMut() -> Option<T>) -> T {
    let log = || std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    eventually_blocking(what, TIMEOUT, || poll().ok_or_else(log))
}

/// Folders in which servers keep credentials.
fn credential_folders(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder.join("scratch")).unwrap().flatten();
    let is_one = |name: &str| name.starts_with("bowline-credentials-");
    entries.filter(|entry| is_one(&entry.file_name().to_string_lossy())).count()
}

#[test]
fn rebuilt_cluster_is_restored_from_bucket_and_recovery_file() {
    let runtime = &cluster().runtime;
    let bed = Bed::new().unwrap();
    let s3 = runtime.block_on(S3::start(&bed)).unwrap();
    s3.create_bucket("recovery").unwrap();
    let folder = tempfile::tempdir().unwrap();
    for name in ["plugins", "scratch"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
    }
    let at = |name: &str| folder.path().join(name).display().to_string();
    let (file, passphrase) = (at("recovery.age"), at("passphrase"));
    std::fs::write(&passphrase, format!("{PASSPHRASE}\n")).unwrap();
    let opens = format!("--passphrase-file={passphrase}");
    let keys = std::fs::read_to_string(s3.credentials_file()).unwrap();
    cluster().apply(json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "recovery-app"},
    }));
    cluster().apply(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": {"color": "blue"},
        "metadata": {"name": "settings", "namespace": "recovery-app"},
    }));

    // The cluster that will be lost: a backup, and an export.
    let old = cluster().test_env("recovery-old");
    let nothing = old.run(&["recovery", "export", &file, &opens]);
    assert_eq!(nothing.code, Some(2), "{}", nothing.stderr);
    assert!(nothing.stderr.contains("nothing to export"), "{}", nothing.stderr);
    cluster().apply(json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"cloud": keys},
        "metadata": {"name": "bucket-keys", "namespace": "recovery-old"},
    }));
    let config = format!("--config=region={REGION},s3ForcePathStyle=true,s3Url={}", s3.url());
    let location = ["backup-location", "create", "main", "--provider=aws", "--bucket=recovery"];
    old.run_ok(
        &[&location[..], &["--credential=bucket-keys=cloud", "--default", &config]].concat(),
    );
    old.apply_velero_object(
        "VolumeSnapshotLocation",
        "disks",
        json!({"spec": {"provider": "example.io/none"}}),
    );
    let server = Server::start(&old, folder.path());
    old.run_ok(&["backup", "create", "b1", "--include-namespaces=recovery-app", "--wait"]);
    old.run_ok(&["recovery", "export", &file, &opens]);
    assert_eq!(Path::new(&file).metadata().unwrap().permissions().mode() & 0o777, 0o600);
    old.run_refused(&["recovery", "export", &file, &opens], &["exists; overwrite it with --force"]);
    let sealed = at("sealed.age");
    old.run_ok(&["recovery", "export", &sealed, "--recipient", RECIPIENT]);
    assert_eq!(credential_folders(folder.path()), 1);
    drop(server);
    assert_eq!(credential_folders(folder.path()), 1, "a killed server leaves its credentials");

    // The file: names without values, and nothing for those who lack the passphrase.
    let shown = old.run_ok(&["recovery", "show", &file, &opens]);
    for word in ["bucket-keys", "keys: cloud", "main", "bucket: recovery", "disks"] {
        assert!(shown.contains(word), "no {word} in {shown}");
    }
    let secret = &s3.credentials().secret_key;
    let stored = std::fs::read(&file).unwrap();
    assert!(!shown.contains(secret.as_str()));
    assert!(!String::from_utf8_lossy(&stored).contains(secret.as_str()));
    let other = at("other");
    std::fs::write(&other, "something else\n").unwrap();
    let wrong = format!("--passphrase-file={other}");
    old.run_refused(&["recovery", "show", &file, &wrong], &["the passphrase is wrong"]);
    old.run_refused(&["recovery", "show", &file], &["without a terminal", "--passphrase-file"]);
    let cut = at("cut.age");
    std::fs::write(&cut, &stored[..stored.len() - 1]).unwrap();
    old.run_refused(&["recovery", "show", &cut, &opens], &["damaged or cut off"]);

    // The new cluster: the file, then the server, then the backups come by themselves.
    let new = cluster().test_env("recovery-new");
    let key = at("key");
    std::fs::write(&key, format!("# made for tests\n{IDENTITY}\n")).unwrap();
    new.run_refused(
        &["recovery", "import", &sealed, &opens],
        &["not with a passphrase", "--identity"],
    );
    let import = |more: &[&str]| {
        new.run(&[&["recovery", "import", &sealed, "--identity", &key], more].concat())
    };
    let planned = import(&["--dry-run"]);
    assert_eq!(planned.code, Some(0), "{}", planned.stderr);
    assert!(planned.stderr.contains("Secret bucket-keys: would be created"), "{}", planned.stderr);
    assert_eq!(new.names::<BackupStorageLocation>(), [""; 0]);
    let unasked = import(&[]);
    assert_eq!(unasked.code, Some(2), "{}", unasked.stderr);
    assert_eq!(new.names::<BackupStorageLocation>(), [""; 0], "nobody has agreed");
    let imported = import(&["--confirm"]);
    assert_eq!(imported.code, Some(0), "{}", imported.stderr);
    assert!(!imported.stderr.contains(secret.as_str()), "{}", imported.stderr);
    assert_eq!(new.names::<VolumeSnapshotLocation>(), ["disks"]);
    let imported_secret: Secret = new.get("bucket-keys");
    assert_eq!(imported_secret.labels()["velero.io/exclude-from-backup"], "true");
    let _server = Server::start(&new, folder.path());
    eventually("the backup is there", folder.path(), || {
        new.names::<Backup>().contains(&"b1".to_owned()).then_some(())
    });
    assert_eq!(credential_folders(folder.path()), 1, "those of the killed server are removed");
    let mapped = "--namespace-mappings=recovery-app:recovery-app-again";
    new.run_ok(&["restore", "create", "r1", "--from-backup=b1", mapped, "--wait"]);
    let restored: Api<ConfigMap> = Api::namespaced(cluster().client.clone(), "recovery-app-again");
    let restored = runtime.block_on(restored.get("settings")).unwrap();
    assert_eq!(restored.data.unwrap()["color"], "blue");

    assert_nothing_is_replaced_without_force(&new, &import, keys.as_bytes());
}

/// Existing objects that differ are changed only with --force.
fn assert_nothing_is_replaced_without_force(
    new: &TestEnv,
    import: &dyn Fn(&[&str]) -> CommandResult,
    keys: &[u8],
) {
    let again = import(&[]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert!(again.stderr.contains("Secret bucket-keys: up to date"), "{}", again.stderr);
    cluster().apply(json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": {"cloud": "of the new cluster"},
        "metadata": {"name": "bucket-keys", "namespace": "recovery-new"},
    }));
    let changed = || {
        let secret: Secret = new.get("bucket-keys");
        secret.data.unwrap()["cloud"].0.clone()
    };
    let refused = import(&["--confirm"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("Secret bucket-keys in namespace"), "{}", refused.stderr);
    assert_eq!(changed(), b"of the new cluster");
    let imported = import(&["--keep-existing", "--confirm"]);
    assert_eq!((imported.code, changed()), (Some(0), b"of the new cluster".to_vec()));
    let replaced = import(&["--force", "--confirm"]);
    assert_eq!((replaced.code, changed()), (Some(0), keys.to_vec()), "{}", replaced.stderr);
}
