use std::sync::LazyLock;

use jiff::Timestamp;
use serde_json::{Value, json};
use zeroize::Zeroizing;

use super::*;

fn password(text: &str) -> Password {
    Password::new(text.to_owned())
}

fn new_blobs() -> NewFormatBlobs {
    let new = NewFormat {
        unique_id: [1; 32],
        secret: Zeroizing::new([2; 32]),
        master_key: Zeroizing::new([3; 32]),
    };
    encode_new(&new, &password("secret"), [[4; 12], [5; 12]]).unwrap()
}

fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

/// The format of a new repository with some fields replaced.
fn changed(changes: &Value) -> Format {
    // A key takes long to derive.
    static FORMAT: LazyLock<Value> = LazyLock::new(|| {
        let blob = FormatBlob::parse(&new_blobs().format).unwrap();
        let format = blob.open(&blob.derive_key(&password("secret")).unwrap()).unwrap();
        serde_json::to_value(&format).unwrap()
    });
    let mut json = FORMAT.clone();
    for (name, value) in changes.as_object().unwrap() {
        json[name] = value.clone();
    }
    serde_json::from_value(json).unwrap()
}

fn refusal(changes: &Value) -> String {
    changed(changes).supported(now()).unwrap_err().to_string()
}

#[test]
fn new_format_is_opened_with_its_password_alone() {
    let blobs = new_blobs();
    let blob = FormatBlob::parse(&blobs.format).unwrap();
    let key = blob.derive_key(&password("secret")).unwrap();
    let format = blob.open(&key).unwrap().supported(now()).unwrap();
    assert_eq!((format.version, format.index_version), (3, 2));
    assert_eq!(format.splitter, Some(crate::splitter::SplitterAlgorithm::DYNAMIC_4M_BUZHASH));
    assert_eq!(blob.open_blob_config(&key, &blobs.blob_config).unwrap(), BlobConfig::default());

    let other = blob.derive_key(&password("other")).unwrap();
    assert!(matches!(blob.open(&other), Err(Error::WrongPassword)));
    let config = blob.open_blob_config(&other, &blobs.blob_config);
    assert!(matches!(config, Err(Error::DamagedBlobConfig)));
}

#[test]
fn damaged_format_blob_is_not_a_wrong_password() {
    let format = new_blobs().format;
    let parse = |bytes: &[u8]| FormatBlob::parse(bytes).unwrap_err().to_string();
    assert_eq!(parse(&format[..format.len() / 2]), "kopia.repository is damaged");
    assert_eq!(parse(b""), "kopia.repository is damaged");
    assert!(matches!(FormatBlob::parse(&vec![b' '; (64 << 10) + 1]), Err(Error::TooLong(_))));
    let with = |name: &str, value: &str| {
        let mut json: Value = serde_json::from_slice(&format).unwrap();
        json[name] = value.into();
        json.to_string().into_bytes()
    };
    let error = FormatBlob::parse(&with("encryption", "NONE")).unwrap_err();
    assert!(matches!(error, Error::UnsupportedFormatEncryption(_)), "{error}");
    let open = |bytes: Vec<u8>| {
        let blob = FormatBlob::parse(&bytes)?;
        blob.open(&blob.derive_key(&password("secret"))?).map(drop)
    };
    assert!(matches!(open(with("encryptedBlockFormat", "AAAA")), Err(Error::Truncated(3))));
    assert!(matches!(open(with("uniqueID", "AAAA")), Err(Error::ShortUniqueId(3))));
    assert!(matches!(open(with("keyAlgo", "md5")), Err(Error::UnsupportedKeyAlgorithm(_))));
}

#[test]
fn key_by_pbkdf2_is_that_of_the_standard() {
    // PBKDF2-HMAC-SHA256 with 600,000 iterations, computed with Python's hashlib.
    let key = KeyAlgorithm::Pbkdf2.derive(&password("password"), &[b's'; 16]).unwrap();
    let (_, aad) = key.aead(b"salt").unwrap();
    assert_eq!(hex::encode(&aad[..]), PBKDF2_AAD);
}

const PBKDF2_AAD: &str = "0238fd485304963eca85eb7910ce7c79c19b0655d9af7e3f9272de7880c5f794";

#[test]
fn parameters_that_are_not_supported_are_named() {
    assert!(refusal(&json!({"version": 1})).contains("format version 1"));
    assert!(refusal(&json!({"version": 4})).contains("format version 4"));
    assert!(refusal(&json!({"indexVersion": 3})).contains("index version 3"));
    assert!(refusal(&json!({"hash": "BLAKE9"})).contains("\"BLAKE9\""));
    assert!(refusal(&json!({"encryption": "ROT13"})).contains("\"ROT13\""));
    let ecc = json!({"ecc": "REED-SOLOMON-CRC32", "eccOverheadPercent": 2});
    assert!(refusal(&ecc).contains("REED-SOLOMON"));
    let no_epochs = json!({"epochParameters": {"Enabled": false}});
    assert!(refusal(&no_epochs).contains("does not use epochs"));
}

#[test]
fn index_version_is_one_where_none_is_named() {
    let format = changed(&json!({"indexVersion": 0, "version": 2})).supported(now()).unwrap();
    assert_eq!((format.version, format.index_version), (2, 1));
}

#[test]
fn unknown_required_feature_stops_unless_it_only_warns() {
    let message = refusal(&json!({"requiredFeatures": [
        {"feature": "index-v2", "ifNotUnderstood": {"warn": false}},
        {"feature": "wings", "ifNotUnderstood": {"message": "upgrade to 9"}},
    ]}));
    assert_eq!(
        message,
        "the repository requires the feature \"wings\", which is not supported: upgrade to 9"
    );
    let warning = changed(
        &json!({"requiredFeatures": [{"feature": "w", "ifNotUnderstood": {"warn": true}}]}),
    );
    assert_eq!(warning.supported(now()).unwrap().unknown_features[0].feature, "w");
    changed(&json!({"requiredFeatures": null})).supported(now()).unwrap();
}

#[test]
fn upgrade_locks_the_repository_from_its_time_on() {
    let lock = json!({"upgradeLock": {
        "ownerID": "admin@host",
        "creationTime": "1970-01-01T00:00:00Z",
        "advanceNoticeDuration": 3_600_000_000_000_i64,
        "ioDrainTimeout": 60_000_000_000_i64,
        "maxPermittedClockDrift": 30_000_000_000_i64,
        "message": "format 4",
    }});
    let format = changed(&lock);
    let at = |second| Timestamp::from_second(second).unwrap();
    format.supported(at(3449)).unwrap();
    let error = format.supported(at(3450)).unwrap_err();
    assert!(matches!(error, Error::UpgradeLock { .. }), "{error}");
    assert!(error.to_string().contains("admin@host"), "{error}");
}

#[test]
fn passwords_and_keys_are_not_shown() {
    let blob = FormatBlob::parse(&new_blobs().format).unwrap();
    let password = password("secret");
    let key = blob.derive_key(&password).unwrap();
    let format = blob.open(&key).unwrap();
    let text = format!("{password:?} {key:?} {format:?}");
    assert!(text.contains("Password(…)") && !text.contains("secret"), "{text}");
}
