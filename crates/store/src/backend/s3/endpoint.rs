//! Addresses: the allowed ones, and the address of a bucket.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bowline_plugin::{Code, Error, Result};
use reqwest::Url;

use super::Environment;
use super::config::{Settings, invalid};

/// Names under which clouds serve credentials to any client on the inside.
const METADATA_NAMES: [&str; 7] = [
    "instance-data",
    "instance-data.ec2.internal",
    "metadata",
    "metadata.azure.internal",
    "metadata.goog",
    "metadata.google.internal",
    "metadata.internal",
];
/// IP addresses of the same services, outside of the link-local range.
const METADATA_ADDRESSES: [IpAddr; 3] = [
    // Alibaba Cloud
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    // Oracle Cloud
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),
    // AWS over IPv6
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
];

/// Parses the address of a service.
pub(super) fn parse(key: &str, text: &str) -> Result<Url> {
    let refused = |reason: &str| {
        Error::new(
            Code::InvalidArgument,
            format!("`{key}` {reason}; expected a URL such as `https://host:port`"),
        )
    };
    let url = Url::parse(text).map_err(|_| refused("is not a URL"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refused("must start with http:// or https://"));
    }
    // Not repeated in the message, since it may contain a password.
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("must not hold a user or password"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refused("must not have a query or fragment"));
    }
    Ok(url)
}

/// Refuses an address at which a cloud serves credentials.
pub(super) fn check_endpoint(url: &Url, allow_link_local: bool) -> Result<()> {
    let host = url.host_str().unwrap_or_default().to_ascii_lowercase();
    let host = host.trim_end_matches('.');
    // The parser has normalized other spellings of numbers, such as 0xa9fea9fe.
    let number = host.trim_start_matches('[').trim_end_matches(']').parse().ok();
    let is_bad = number.map_or(METADATA_NAMES.contains(&host), is_forbidden);
    if is_bad && !allow_link_local {
        return invalid(format!(
            "`s3Url` is refused: {host} is a link-local or metadata address, which could hand \
             out the server's own credentials; the server does not allow such addresses"
        ));
    }
    Ok(())
}

/// True if an address is link-local, or that of a metadata service.
pub(super) fn is_forbidden(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    is_link_local || METADATA_ADDRESSES.contains(&address)
}

/// The address of a bucket, with the bucket in the host or in the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BucketAddress {
    pub url: String,
    pub in_host: bool,
}

impl BucketAddress {
    /// The common prefix of the addresses of all objects in the bucket.
    pub(super) fn object_base_url(&self, bucket: &str) -> Result<Url> {
        let text = if self.in_host { self.url.clone() } else { format!("{}/{bucket}", self.url) };
        Url::parse(&text)
            .map_err(|_| Error::new(Code::InvalidArgument, "the bucket has no valid address"))
    }
}

/// The requested variant of the AWS addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct EndpointVariant {
    /// With validated cryptography (FIPS).
    pub fips: bool,
    /// Reachable over IPv6, too.
    pub dual_stack: bool,
}

impl EndpointVariant {
    /// From the variables of the AWS tools.
    pub(super) fn from_environment(environment: &Environment) -> Self {
        let is_set = |name: &str| {
            environment.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
        };
        Self {
            fips: is_set("AWS_USE_FIPS_ENDPOINT"),
            dual_stack: is_set("AWS_USE_DUALSTACK_ENDPOINT"),
        }
    }
}

/// The AWS partitions by the prefixes of their regions: their domain, and that of dual-stack
/// addresses.
const PARTITIONS: [(&str, &str, &str); 6] = [
    ("cn-", "amazonaws.com.cn", "api.amazonwebservices.com.cn"),
    ("eusc-", "amazonaws.eu", "api.amazonwebservices.eu"),
    ("us-isof-", "csp.hci.ic.gov", "api.aws.hci.ic.gov"),
    ("us-isob-", "sc2s.sgov.gov", "api.aws.scloud"),
    ("us-iso-", "c2s.ic.gov", "api.aws.ic.gov"),
    ("eu-isoe-", "cloud.adc-e.uk", "api.cloud-aws.adc-e.uk"),
];

/// The domains of the AWS partition of a region.
fn domains(region: &str) -> (&'static str, &'static str) {
    let partition = PARTITIONS.iter().find(|(begin, ..)| region.starts_with(begin));
    partition.map_or(("amazonaws.com", "api.aws"), |(_, domain, dual_stack)| (domain, dual_stack))
}

/// The address of the service that issues credentials for a role, found as by the AWS tools.
pub(super) fn sts_endpoint(region: &str, environment: &Environment) -> String {
    let ignored = environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
    let is_ignored = ignored.is_some_and(|value| value.eq_ignore_ascii_case("true"));
    if let Some(url) = environment.get("AWS_ENDPOINT_URL_STS").filter(|_| !is_ignored) {
        return url.trim_end_matches('/').to_owned();
    }
    let EndpointVariant { fips, dual_stack } = EndpointVariant::from_environment(environment);
    let (plain, both) = domains(region);
    let service = if fips { "sts-fips" } else { "sts" };
    format!("https://{service}.{region}.{}", if dual_stack { both } else { plain })
}

/// The address of a bucket, at a service or, without one, at AWS.
pub(super) fn bucket_endpoint(
    settings: &Settings,
    service: Option<&Url>,
    region: &str,
    variant: EndpointVariant,
) -> BucketAddress {
    let bucket = &settings.bucket;
    let (domain, _) = domains(region);
    let (scheme, host, rest) = if let Some(url) = service {
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let path = url.path().trim_end_matches('/');
        let host = url.host_str().unwrap_or_default().to_owned();
        (url.scheme(), host, format!("{port}{path}"))
    } else {
        let service = if variant.fips { "s3-fips" } else { "s3" };
        let stack = if variant.dual_stack { ".dualstack" } else { "" };
        ("https", format!("{service}{stack}.{region}.{domain}"), String::new())
    };
    let is_number = host.starts_with('[') || host.parse::<Ipv4Addr>().is_ok();
    let is_label = bucket.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-'));
    // A name with dots matches no certificate of `*.host`.
    let fits = is_label || (scheme == "http" && !bucket.bytes().any(|b| b.is_ascii_uppercase()));
    let in_host = !settings.path_style && !is_number && fits;
    let host = if in_host { format!("{bucket}.{host}") } else { host };
    BucketAddress { url: format!("{scheme}://{host}{rest}"), in_host }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bowline_plugin::Config;

    #[test]
    fn metadata_addresses_are_refused_in_every_spelling() {
        for text in [
            "http://169.254.169.254",
            "http://169.254.0.1:8080/latest",
            "http://0xa9fea9fe/",
            "http://2852039166",
            "http://0251.0376.0251.0376",
            "http://[fe80::1]",
            "http://[febf::1]",
            "http://[::ffff:169.254.169.254]",
            "http://[fd00:ec2::254]",
            "http://100.100.100.200",
            "http://metadata.google.internal",
            "http://METADATA.google.internal./computeMetadata",
            "http://metadata",
            "https://instance-data.ec2.internal",
        ] {
            let url = parse("s3Url", text).unwrap();
            let error = check_endpoint(&url, false).unwrap_err();
            assert!(error.message().contains("metadata address"), "{text}: {error}");
            check_endpoint(&url, true).unwrap();
        }
        for text in
            ["http://127.0.0.1:9000", "https://s3.example", "http://[::1]:1", "http://10.0.0.1"]
        {
            check_endpoint(&parse("s3Url", text).unwrap(), false).unwrap();
        }
    }

    #[test]
    fn invalid_service_url_is_refused_without_echoing_it() {
        for text in
            ["minio:9000", "ftp://host", "/path", "", "https://host/?a=b", "https://host/#a"]
        {
            assert!(parse("s3Url", text).is_err(), "{text}");
        }
        let error = parse("s3Url", "https://user:hunter2@host").unwrap_err();
        assert!(!error.message().contains("hunter2"), "{error}");
    }

    #[test]
    fn bucket_is_in_the_host_or_path_as_veleros_aws_plugin_does_it() {
        let address = |url: &str, bucket: &str, path_style: &str, region: &str| {
            let config: Config =
                [("bucket", bucket), ("s3ForcePathStyle", path_style), ("s3Url", url)]
                    .map(|(k, v)| (k.to_owned(), v.to_owned()))
                    .into();
            let settings = Settings::read(&config, false).unwrap();
            bucket_endpoint(&settings, settings.url.as_ref(), region, EndpointVariant::default())
                .url
        };
        for (url, bucket, path_style, region, expected) in [
            ("", "b", "", "eu-west-1", "https://b.s3.eu-west-1.amazonaws.com"),
            ("", "b", "true", "eu-west-1", "https://s3.eu-west-1.amazonaws.com"),
            ("", "a.b", "", "eu-west-1", "https://s3.eu-west-1.amazonaws.com"),
            ("", "b", "", "cn-north-1", "https://b.s3.cn-north-1.amazonaws.com.cn"),
            ("http://minio:9000/", "b", "", "x", "http://b.minio:9000"),
            ("http://minio:9000/", "b", "true", "x", "http://minio:9000"),
            ("https://host/base/", "b", "true", "x", "https://host/base"),
            ("http://127.0.0.1:9000", "b", "", "x", "http://127.0.0.1:9000"),
            ("http://[::1]:9000", "b", "", "x", "http://[::1]:9000"),
            ("https://host", "Old_Bucket", "", "x", "https://host"),
        ] {
            assert_eq!(address(url, bucket, path_style, region), expected, "{url} {bucket}");
        }
    }

    #[test]
    fn role_credentials_come_from_the_sts_of_the_regions_partition() {
        let environment = |pairs: &[(&str, &str)]| {
            Environment(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
        };
        let fips = ("AWS_USE_FIPS_ENDPOINT", "true");
        let both = ("AWS_USE_DUALSTACK_ENDPOINT", "true");
        let set = ("AWS_ENDPOINT_URL_STS", "https://sts.internal/");
        let ignored = ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true");
        for (region, pairs, expected) in [
            ("eu-west-1", &[][..], "https://sts.eu-west-1.amazonaws.com"),
            ("cn-north-1", &[], "https://sts.cn-north-1.amazonaws.com.cn"),
            ("us-iso-east-1", &[], "https://sts.us-iso-east-1.c2s.ic.gov"),
            ("us-isob-east-1", &[], "https://sts.us-isob-east-1.sc2s.sgov.gov"),
            ("us-gov-west-1", &[fips], "https://sts-fips.us-gov-west-1.amazonaws.com"),
            ("eu-west-1", &[both], "https://sts.eu-west-1.api.aws"),
            ("cn-north-1", &[set], "https://sts.internal"),
            ("eu-west-1", &[set, ignored], "https://sts.eu-west-1.amazonaws.com"),
        ] {
            assert_eq!(sts_endpoint(region, &environment(pairs)), expected, "{region} {pairs:?}");
        }
        let config: Config = [("bucket".to_owned(), "b".to_owned())].into();
        let settings = Settings::read(&config, false).unwrap();
        let variant = EndpointVariant::from_environment(&environment(&[fips, both]));
        let address = bucket_endpoint(&settings, None, "eu-west-1", variant);
        assert_eq!(address.url, "https://b.s3-fips.dualstack.eu-west-1.amazonaws.com");
    }
}
