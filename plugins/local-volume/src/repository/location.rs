//! Location of a repository: a folder, or an S3 bucket in restic's notation.
//!
//! ```text
//! /backup/repository
//! s3:https://minio.example:9000/bucket/prefix
//! s3:s3.eu-central-1.amazonaws.com/bucket/prefix
//! ```

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use reqwest::Url;

use crate::credentials::Credentials;
use crate::path::{InvalidPath, VolumePath};

/// Suffix of AWS addresses.
const AWS: &str = ".amazonaws.com";

/// Location of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Folder(PathBuf),
    S3(Bucket),
}

/// A part of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    /// The service; `None` for AWS itself.
    pub endpoint: Option<Url>,
    /// The region, if the address names it.
    pub region: Option<String>,
    pub name: String,
    /// Without slashes around; empty for the whole bucket.
    pub prefix: String,
}

/// Reasons why a text is not a location. Never repeats a part that may be secret.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidLocation {
    #[error(
        "the value is neither an absolute path nor begins with `s3:`; other stores are not \
         supported"
    )]
    Other,
    #[error(transparent)]
    Path(#[from] InvalidPath),
    #[error("no valid URL follows `s3:`; expected `https://host/bucket/prefix`")]
    Address,
    #[error("the address contains credentials; put them into the credential of the location")]
    Secret,
    #[error("{0:?} is not a valid bucket name")]
    Bucket(String),
    #[error("{0:?} is not a valid prefix: expected no empty part and no part `.` or `..`")]
    Prefix(String),
    #[error("the link-local address {0} is refused: cloud metadata services use it")]
    LinkLocal(IpAddr),
    #[error(
        "S3 needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the credential of the location"
    )]
    NoKey,
}

impl Location {
    pub(crate) fn parse(text: &str, credentials: &Credentials) -> Result<Self, InvalidLocation> {
        if text.starts_with('/') {
            return Ok(Self::Folder(text.parse::<VolumePath>()?.as_path().to_owned()));
        }
        let address = text.strip_prefix("s3:").ok_or(InvalidLocation::Other)?;
        let bucket = Bucket::parse(address)?;
        if credentials.access_key.is_none() || credentials.secret_key.is_none() {
            return Err(InvalidLocation::NoKey);
        }
        Ok(Self::S3(bucket))
    }

    /// The folder, if it is one.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        match self {
            Self::Folder(path) => Some(path.clone()),
            Self::S3(_) => None,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(f),
            Self::S3(Bucket { endpoint, name, prefix, .. }) => {
                f.write_str("s3:")?;
                if let Some(host) = endpoint.as_ref().and_then(Url::host_str) {
                    write!(f, "{host}/")?;
                }
                write!(f, "{name}")?;
                if prefix.is_empty() { Ok(()) } else { write!(f, "/{prefix}") }
            }
        }
    }
}

impl Bucket {
    fn parse(address: &str) -> Result<Self, InvalidLocation> {
        let has_scheme = address.starts_with("http://") || address.starts_with("https://");
        let full = if has_scheme { address.to_owned() } else { format!("https://{address}") };
        let url: Url = full.parse().map_err(|_| InvalidLocation::Address)?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(InvalidLocation::Secret);
        }
        let host = url.host_str().ok_or(InvalidLocation::Address)?;
        if url.query().is_some() || url.fragment().is_some() {
            return Err(InvalidLocation::Address);
        }
        if let Ok(number) = host.trim_matches(['[', ']']).parse::<IpAddr>()
            && is_link_local(number)
        {
            return Err(InvalidLocation::LinkLocal(number));
        }
        // The original text: a parsed URL drops parts `..`.
        let after_scheme = full.split_once("://").map_or("", |(_, rest)| rest);
        let (_, path) = after_scheme.split_once('/').unwrap_or_default();
        let (name, prefix) = path.split_once('/').unwrap_or((path, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if !is_bucket_name(name) {
            return Err(InvalidLocation::Bucket(name.to_owned()));
        }
        let is_part = |part: &str| !matches!(part, "" | "." | "..");
        if !prefix.is_empty() && !prefix.split('/').all(is_part) {
            return Err(InvalidLocation::Prefix(prefix.to_owned()));
        }
        let region = host.strip_suffix(AWS).and_then(|host| host.strip_prefix("s3."));
        let is_aws = region.is_some() || host == "s3.amazonaws.com";
        let mut endpoint = url.clone();
        endpoint.set_path("");
        Ok(Self {
            endpoint: (!is_aws).then_some(endpoint),
            region: region.map(str::to_owned),
            name: name.to_owned(),
            prefix: prefix.to_owned(),
        })
    }
}

fn is_bucket_name(name: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    (3..=63).contains(&name.len()) && name.chars().all(is_letter) && !name.starts_with('.')
}

/// True for addresses that only this machine and its cloud answer.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => {
            address.is_unicast_link_local()
                || address.to_ipv4_mapped().is_some_and(|address| address.is_link_local())
                // The IPv6 addresses of AWS services on the instance.
                || address.segments()[..2] == [0xfd00, 0x0ec2]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Location, InvalidLocation> {
        let keys = "AWS_ACCESS_KEY_ID=a\nAWS_SECRET_ACCESS_KEY=b";
        Location::parse(text, &Credentials::parse(keys))
    }

    #[test]
    fn folders_and_buckets_are_parsed() {
        let bucket = |text: &str| match parse(text) {
            Ok(Location::S3(bucket)) => bucket,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(parse("/a//b/"), Ok(Location::Folder("/a/b".into())));
        let minio = bucket("s3:http://10.0.0.1:9000/bucket/a/b/");
        assert_eq!(minio.endpoint.unwrap().as_str(), "http://10.0.0.1:9000/");
        assert_eq!((minio.name.as_str(), minio.prefix.as_str()), ("bucket", "a/b"));
        let plain = bucket("s3:minio.example/bucket");
        assert_eq!(plain.endpoint.unwrap().as_str(), "https://minio.example/");
        assert_eq!(plain.prefix, "");
        let aws = bucket("s3:s3.eu-central-1.amazonaws.com/bucket/x");
        assert_eq!((aws.endpoint, aws.region.as_deref()), (None, Some("eu-central-1")));
        assert_eq!(bucket("s3:https://s3.amazonaws.com/bucket").region, None);
        assert_eq!(parse("s3:https://h:1/bucket/x").unwrap().to_string(), "s3:h/bucket/x");
    }

    #[test]
    fn invalid_locations_are_refused() {
        for (text, expected) in [
            ("sftp:host:/x", InvalidLocation::Other),
            ("relative", InvalidLocation::Other),
            ("s3://", InvalidLocation::Address),
            ("s3:https://", InvalidLocation::Address),
            ("s3:https://h/bucket?x=1", InvalidLocation::Address),
            ("s3:https://u:p@h/bucket", InvalidLocation::Secret),
            ("s3:https://h", InvalidLocation::Bucket(String::new())),
            ("s3:https://h/a b c", InvalidLocation::Bucket("a b c".to_owned())),
            ("s3:https://h/../x", InvalidLocation::Bucket("..".to_owned())),
            ("s3:https://h/bucket/../x", InvalidLocation::Prefix("../x".to_owned())),
            ("s3:https://h/bucket//x", InvalidLocation::Prefix("/x".to_owned())),
            (
                "s3:http://169.254.169.254/bucket",
                InvalidLocation::LinkLocal([169, 254, 169, 254].into()),
            ),
        ] {
            assert_eq!(parse(text), Err(expected), "{text}");
        }
        for text in ["s3:http://[fe80::1]/bucket", "s3:http://[fd00:ec2::254]/bucket"] {
            assert!(matches!(parse(text), Err(InvalidLocation::LinkLocal(_))), "{text}");
        }
        assert!(matches!(parse("/a/../b"), Err(InvalidLocation::Path(_))));
        let without = Location::parse("s3:h/bucket", &Credentials::default());
        assert_eq!(without, Err(InvalidLocation::NoKey));
    }
}
