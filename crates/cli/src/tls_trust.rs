//! Certificates to trust for downloads.

use std::error::Error;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use bowline_api::BackupStorageLocation;
use bowline_api::backup_storage_location::ObjectStorageLocation;
use k8s_openapi::api::core::v1::{Secret, SecretKeySelector};
use reqwest::Certificate;
use rustls::AlertDescription;

use crate::args::TrustArgs;
use crate::client_config;
use crate::installation::{Installation, is_not_found};
use crate::output;

/// Larger than any real bundle of certificates.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Certificates in a text; none is an error.
pub(crate) fn parse_certificates(pem: &[u8]) -> anyhow::Result<Vec<Certificate>> {
    match Certificate::from_pem_bundle(pem) {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => bail!("no certificate in PEM format found"),
    }
}

/// True if a connection failed because one side does not accept the certificate of the other.
pub(crate) fn is_certificate_error(error: &(dyn Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(cause) = next {
        match cause.downcast_ref() {
            Some(rustls::Error::AlertReceived(alert)) => return is_certificate_alert(*alert),
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => {
                return true;
            }
            _ => {}
        }
        next = match cause.downcast_ref::<io::Error>() {
            // An I/O error leaves out the error that it wraps when it is asked for its source.
            Some(error) => error.get_ref().map(|wrapped| wrapped as &(dyn Error + 'static)),
            None => cause.source(),
        };
    }
    false
}

fn is_certificate_alert(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateUnobtainable
            | AlertDescription::CertificateRequired
    )
}

/// Content of a certificate file, checked.
pub(crate) fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let cannot = || format!("cannot use the certificates in {}", path.display());
    let mut pem = Vec::new();
    let file = File::open(path).with_context(cannot)?;
    file.take(MAX_FILE_BYTES).read_to_end(&mut pem).with_context(cannot)?;
    parse_certificates(&pem).with_context(cannot)?;
    Ok(pem)
}

/// Certificates to trust besides the system's: of the flag, else of the user's settings, else of the storage location.
pub(crate) async fn for_location(
    installation: &Installation,
    location: &str,
    args: &TrustArgs,
) -> anyhow::Result<Vec<Certificate>> {
    let file = match &args.cacert {
        Some(file) => Some(file.clone()),
        None => client_config::load()?.cacert.filter(|file| !file.as_os_str().is_empty()),
    };
    if let Some(file) = file {
        return parse_certificates(&read_file(&file)?);
    }
    if args.insecure_skip_tls_verify || location.is_empty() {
        return Ok(Vec::new());
    }
    let found = location_certificates(installation, location).await;
    // The system's certificates may be enough, so continue without.
    Ok(found.unwrap_or_else(|error| {
        let reason = output::error_chain(&error);
        output::print_message(format_args!(
            "warning: cannot use the certificates of location `{location}`: {reason}"
        ));
        Vec::new()
    }))
}

async fn location_certificates(
    installation: &Installation,
    location: &str,
) -> anyhow::Result<Vec<Certificate>> {
    let api = installation.api::<BackupStorageLocation>();
    let request = async {
        match api.get(location).await {
            Err(error) if is_not_found(&error) => Ok(None),
            got => got.map(Some),
        }
    };
    let found = installation.call_api("read the location", request).await?;
    let Some(ObjectStorageLocation { ca_cert, ca_cert_ref, .. }) =
        found.and_then(|location| location.spec.object_storage)
    else {
        return Ok(Vec::new());
    };
    match (ca_cert_ref, ca_cert) {
        (Some(reference), _) => parse_certificates(&secret_value(installation, &reference).await?),
        (None, Some(pem)) if !pem.0.is_empty() => parse_certificates(&pem.0),
        _ => Ok(Vec::new()),
    }
}

async fn secret_value(
    installation: &Installation,
    reference: &SecretKeySelector,
) -> anyhow::Result<Vec<u8>> {
    let SecretKeySelector { name, key, .. } = reference;
    let doing = format!("read Secret `{name}`");
    let secret = installation.call_api(&doing, installation.api::<Secret>().get(name)).await?;
    let value = secret.data.and_then(|mut data| data.remove(key));
    value.map(|value| value.0).with_context(|| format!("Secret `{name}` has no key `{key}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_without_certificates_is_named_in_the_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "no certificate").unwrap();
        let error = output::error_chain(&read_file(file.path()).unwrap_err());
        assert!(error.contains(file.path().to_str().unwrap()), "{error}");
        assert!(error.contains("no certificate in PEM format"), "{error}");
        assert!(read_file(Path::new("/proc/none")).is_err());
    }
}
