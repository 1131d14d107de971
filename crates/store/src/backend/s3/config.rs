//! Settings of a location.

use std::path::PathBuf;

use bowline_plugin::{Code, Config, Error, Result};
use object_store::TagSet;
use object_store::aws::Checksum;
use reqwest::Url;

use super::endpoint;
use crate::backend::{BUCKET, CA_CERT, CREDENTIALS_FILE, refuse_unknown_keys};

/// The settings that `velero-plugin-for-aws` 1.14 knows, in addition to those of all plugins.
const KNOWN_KEYS: [&str; 15] = [
    "region",
    "s3Url",
    "publicUrl",
    "kmsKeyId",
    "customerKeyEncryptionFile",
    "customerKeyEncryptionSecret",
    "s3ForcePathStyle",
    "signatureVersion",
    CREDENTIALS_FILE,
    "profile",
    "serverSideEncryption",
    "insecureSkipTLSVerify",
    "enableSharedConfig",
    "tagging",
    CHECKSUM_KEY,
];
const CHECKSUM_KEY: &str = "checksumAlgorithm";
const MAX_TAGS: usize = 10;

/// The settings of a location.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub bucket: String,
    pub region: Option<String>,
    pub url: Option<Url>,
    pub public_url: Option<Url>,
    pub path_style: bool,
    pub ca_cert: Option<String>,
    pub skip_tls_verify: bool,
    pub profile: Option<String>,
    pub credentials_file: Option<PathBuf>,
    pub encryption: Encryption,
    pub tags: TagSet,
    pub checksum: Option<Checksum>,
}

/// Server-side encryption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Encryption {
    /// The default of the bucket.
    BucketDefault,
    /// With this algorithm: `AES256`, `aws:kms`.
    Algorithm(String),
    /// With this key of KMS.
    Kms(String),
}

impl Settings {
    pub(super) fn read(config: &Config, allow_link_local: bool) -> Result<Self> {
        refuse_unknown_keys(config, &KNOWN_KEYS)?;
        let get = |key: &str| config.get(key).filter(|value| !value.is_empty()).cloned();
        for key in ["customerKeyEncryptionFile", "customerKeyEncryptionSecret"] {
            if get(key).is_some() {
                return invalid(format!(
                    "`{key}` is not built in: install `velero-plugin-for-aws`, or use `kmsKeyId`"
                ));
            }
        }
        let url = |key: &str| get(key).map(|text| endpoint::parse(key, &text)).transpose();
        let service = url("s3Url")?;
        if let Some(service) = &service {
            endpoint::check_endpoint(service, allow_link_local)?;
        }
        let bucket = get(BUCKET).unwrap_or_default();
        if !is_plain_identifier(&bucket, b"-_.") {
            return invalid(format!("`{bucket}` is not a valid bucket name"));
        }
        let region = get("region");
        if let Some(region) = region.as_deref().filter(|region| !is_plain_identifier(region, b"-_"))
        {
            return invalid(format!("`{region}` is not a valid region name"));
        }
        Ok(Self {
            bucket,
            region,
            url: service,
            public_url: url("publicUrl")?,
            path_style: flag(config, "s3ForcePathStyle")?,
            ca_cert: get(CA_CERT),
            skip_tls_verify: flag(config, "insecureSkipTLSVerify")?,
            profile: get("profile"),
            credentials_file: get(CREDENTIALS_FILE).map(PathBuf::from),
            encryption: match (get("kmsKeyId"), get("serverSideEncryption")) {
                (Some(key), _) => Encryption::Kms(key),
                (None, Some(algorithm)) => Encryption::Algorithm(algorithm),
                (None, None) => Encryption::BucketDefault,
            },
            tags: tags(get("tagging").as_deref().unwrap_or_default())?,
            checksum: checksum(config.get(CHECKSUM_KEY).map(String::as_str))?,
        })
    }
}

/// The checksum that is sent with stored objects. S3 requires one for buckets with object lock, and
/// accepts any: so there is one unless the setting is present and empty. SHA-256 replaces those
/// that cannot be sent, and costs nothing more, since the signature needs it anyway.
fn checksum(setting: Option<&str>) -> Result<Option<Checksum>> {
    match setting {
        Some("") => Ok(None),
        None | Some("CRC32" | "CRC32C" | "SHA1" | "SHA256") => Ok(Some(Checksum::SHA256)),
        Some("CRC64NVME") => Ok(Some(Checksum::CRC64NVME)),
        Some(other) => invalid(format!(
            "invalid checksum algorithm {other}: expected CRC32, CRC32C, CRC64NVME, SHA1 or \
             SHA256, or an empty value for no checksum"
        )),
    }
}

/// True if a text consists of letters, digits and the given characters, so that it can be put into
/// an address without changing its meaning.
pub(super) fn is_plain_identifier(text: &str, allowed: &[u8]) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || allowed.contains(&b))
}

/// A flag in the spellings that Go's `ParseBool` accepts.
fn flag(config: &Config, key: &str) -> Result<bool> {
    match config.get(key).map_or("", String::as_str) {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        other => invalid(format!("could not parse `{key}` (expected bool): `{other}`")),
    }
}

/// Tags in query format: `Key1=Value1&Key2=Value2`.
fn tags(text: &str) -> Result<TagSet> {
    let mut tags = TagSet::default();
    if text.is_empty() {
        return Ok(tags);
    }
    let parts: Vec<&str> = text.split('&').collect();
    if parts.len() > MAX_TAGS {
        return invalid(format!("`tagging` has more than the {MAX_TAGS} tags that S3 allows"));
    }
    if parts.iter().any(|part| part.split('=').count() != 2) {
        return invalid("`tagging` must have the form `Key1=Value1&Key2=Value2`".to_owned());
    }
    let decoded = Url::parse(&format!("x:/?{text}")).map_err(|_| {
        Error::new(Code::InvalidArgument, "`tagging` is invalid: expected Key1=Value1&Key2=Value2")
    })?;
    for (key, value) in decoded.query_pairs() {
        if key.is_empty() || key.chars().count() > 128 || value.chars().count() > 256 {
            return invalid(
                "a tag of S3 has a key of 1 to 128 characters and a value of up to 256".to_owned(),
            );
        }
        tags.push(&key, &value);
    }
    Ok(tags)
}

pub(super) fn invalid<T>(message: String) -> Result<T> {
    Err(Error::new(Code::InvalidArgument, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_settings(pairs: &[(&str, &str)]) -> Result<Settings> {
        let mut config: Config =
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        config.entry("bucket".to_owned()).or_insert_with(|| "b".to_owned());
        Settings::read(&config, false)
    }

    fn refusal_message(pairs: &[(&str, &str)]) -> String {
        read_settings(pairs).unwrap_err().message().to_owned()
    }

    #[test]
    fn settings_of_veleros_aws_plugin_are_accepted_and_others_refused() {
        let settings = read_settings(&[
            ("region", "eu-west-1"),
            ("s3Url", "https://minio.example:9000"),
            ("publicUrl", "https://public.example"),
            ("s3ForcePathStyle", "true"),
            ("insecureSkipTLSVerify", "T"),
            ("profile", "ops"),
            ("credentialsFile", "/c"),
            ("serverSideEncryption", "AES256"),
            ("tagging", "a=1&b=x+y%26"),
            ("signatureVersion", "4"),
            ("enableSharedConfig", "true"),
            ("checksumAlgorithm", "SHA256"),
            ("caCert", "PEM"),
            ("prefix", "p"),
        ])
        .unwrap();
        assert!(settings.path_style && settings.skip_tls_verify);
        assert_eq!(settings.encryption, Encryption::Algorithm("AES256".to_owned()));
        assert_eq!(settings.tags.encoded(), "a=1&b=x+y%26");
        assert_eq!(settings.checksum, Some(Checksum::SHA256));
        let error = refusal_message(&[("regoin", "x")]);
        assert!(error.contains("invalid keys [\"regoin\"]"), "{error}");
    }

    #[test]
    fn checksum_is_sent_unless_disabled() {
        let sent = |pairs: &[(&str, &str)]| read_settings(pairs).unwrap().checksum;
        assert_eq!(sent(&[]), Some(Checksum::SHA256));
        for named in ["CRC32", "CRC32C", "SHA1", "SHA256"] {
            assert_eq!(sent(&[(CHECKSUM_KEY, named)]), Some(Checksum::SHA256), "{named}");
        }
        assert_eq!(sent(&[(CHECKSUM_KEY, "CRC64NVME")]), Some(Checksum::CRC64NVME));
        assert_eq!(sent(&[(CHECKSUM_KEY, "")]), None);
    }

    #[test]
    fn kms_key_wins_over_algorithm() {
        let settings =
            read_settings(&[("kmsKeyId", "k"), ("serverSideEncryption", "AES256")]).unwrap();
        assert_eq!(settings.encryption, Encryption::Kms("k".to_owned()));
    }

    #[test]
    fn invalid_values_are_refused_naming_their_key() {
        for (key, value, expected) in [
            ("s3ForcePathStyle", "yes", "s3ForcePathStyle"),
            ("insecureSkipTLSVerify", "no", "insecureSkipTLSVerify"),
            ("checksumAlgorithm", "MD5", "invalid checksum algorithm MD5"),
            ("tagging", "a", "Key1=Value1"),
            ("tagging", "a=b=c", "Key1=Value1"),
            ("tagging", "a=1&b=2&c=3&d=4&e=5&f=6&g=7&h=8&i=9&j=0&k=1", "10 tags"),
            ("region", "evil.example/#", "not a valid region name"),
            ("bucket", "evil.example/#", "not a valid bucket name"),
            ("bucket", "", "not a valid bucket name"),
            ("customerKeyEncryptionFile", "/etc/shadow", "velero-plugin-for-aws"),
            ("customerKeyEncryptionSecret", "a/b", "velero-plugin-for-aws"),
        ] {
            let error = refusal_message(&[(key, value)]);
            assert!(error.contains(expected), "{key}={value}: {error}");
        }
    }
}
