use bowline_plugin_sdk::error_chain;

use super::*;

fn config(pairs: &[(&str, &str)]) -> Config {
    pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn refusal_message(pairs: &[(&str, &str)]) -> String {
    error_chain(&Settings::read(&config(pairs)).expect_err("it is refused"))
}

#[test]
fn roots_alone_are_a_valid_config() {
    let settings = Settings::read(&config(&[("roots", "/data:/mnt/disks/")])).unwrap();
    let roots: Vec<&str> = settings.roots.iter().map(VolumePath::as_str).collect();
    assert_eq!(roots, ["/data", "/mnt/disks"]);
    assert_eq!(settings.state_dir.as_str(), "/data/.bowline-snapshots");
    assert!(settings.repository.is_none() && !settings.keep_local && settings.node.is_none());
}

#[test]
fn every_setting_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let password = folder.path().join("password");
    std::fs::write(&password, "hunter2\n").unwrap();
    let settings = Settings::read(&config(&[
        ("roots", "/data"),
        ("stateDir", "/state"),
        ("repository", "/backup/repo"),
        ("passwordFile", password.to_str().unwrap()),
        ("keepLocal", "true"),
        ("node", "edge-1"),
        ("region", "eu-central-1"),
        ("uploadLimit", "1048576"),
    ]))
    .unwrap();
    assert_eq!(settings.state_dir.as_str(), "/state");
    assert!(settings.keep_local);
    assert_eq!(settings.node.as_deref(), Some("edge-1"));
    let repository = settings.repository.unwrap();
    assert_eq!(repository.location, Location::Folder("/backup/repo".into()));
    assert_eq!(repository.password.reveal(), "hunter2");
    assert_eq!(repository.upload_limit.map(NonZeroU64::get), Some(1_048_576));
}

#[test]
fn password_file_wins_over_the_credentials_password() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (file, credential) =
        (write("p", "from-file"), write("c", "RUSTIC_PASSWORD=from-credential"));
    let base = [("roots", "/data"), ("repository", "/r"), ("credentialsFile", &credential)];
    let password = |pairs: &[(&str, &str)]| {
        let settings = Settings::read(&config(pairs)).unwrap();
        settings.repository.unwrap().password.reveal().to_owned()
    };
    assert_eq!(password(&base), "from-credential");
    assert_eq!(password(&[&base[..], &[("passwordFile", &file)]].concat()), "from-file");
}

#[test]
fn errors_name_the_config_key() {
    for (pairs, words) in [
        (&[][..], "\"roots\" is required"),
        (&[("roots", "")], "\"roots\" is required"),
        (&[("roots", "data")], "\"roots\": \"data\" is not an absolute path"),
        (&[("roots", "/a:")], "\"roots\": \"\" is not an absolute path"),
        (&[("roots", "/a/../b")], "\"roots\": \"/a/../b\" has a part"),
        (&[("roots", "/")], "\"roots\": the path is /"),
        (&[("roots", "/a"), ("stateDir", "s")], "\"stateDir\": \"s\" is not"),
        (&[("roots", "/a"), ("keepLocal", "yes")], "\"keepLocal\" must be true or false"),
        (&[("roots", "/a"), ("repository", "/r")], "needs a password"),
        (&[("roots", "/a"), ("repository", "r"), ("passwordFile", "/x")], "\"passwordFile\": /x"),
        (&[("roots", "/a"), ("repository", "sftp:x")], "\"repository\": "),
        (&[("roots", "/a"), ("region", "eu/../x")], "\"region\" is not a region"),
        (
            &[("roots", "/a"), ("root", "/a")],
            "unknown config key \"root\"; valid keys: credentialsFile, keepLocal, node, passwordFile, \
             region, repository, roots, stateDir, uploadLimit",
        ),
        (
            &[("roots", "/a"), ("uploadLimit", "0")],
            "\"uploadLimit\" must be a positive number of bytes",
        ),
        (
            &[("roots", "/a"), ("uploadLimit", "10M")],
            "\"uploadLimit\" must be a positive number of bytes",
        ),
    ] {
        let error = refusal_message(pairs);
        assert!(error.contains(words), "{pairs:?}: {error}");
    }
    let many = vec!["/a"; 65].join(":");
    assert!(refusal_message(&[("roots", &many)]).contains("more than 64"));
}

#[test]
fn errors_never_show_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c");
    std::fs::write(&file, "RUSTIC_PASSWORD=hunter2\nAWS_SECRET_ACCESS_KEY=hunter3\n").unwrap();
    let error = refusal_message(&[
        ("roots", "/a"),
        ("credentialsFile", file.to_str().unwrap()),
        ("repository", "s3:https://user:hunter4@host/bucket"),
    ]);
    assert!(!error.contains("hunter"), "{error}");
}
