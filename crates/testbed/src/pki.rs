//! Certificates for one bed: its own authority, and the certificates it signs.
//!
//! The identities are those of Kubernetes: the API server takes user and groups from a client certificate, and RBAC
//! decides from there.

use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

use crate::isolation::NODE_ADDRESS;

/// Failure to make the certificates.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate could not be made.
    #[error("cannot make the certificate of {name}")]
    Make {
        /// Owner of the certificate.
        name: String,
        #[source]
        /// Error of the library.
        source: rcgen::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        #[source]
        /// Reason given by the system.
        source: io::Error,
    },
}

/// Certificate and its key, as files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Certificate, PEM.
    pub certificate: PathBuf,
    /// Private key, PEM, readable by its owner only.
    pub key: PathBuf,
}

/// Key pair, as files.
#[derive(Clone, Debug)]
pub struct SigningKey {
    /// Private key, PEM, readable by its owner only.
    pub private: PathBuf,
    /// Public key, PEM.
    pub public: PathBuf,
}

/// Certificate authority of a bed, with a folder for the certificates it signs.
pub struct Authority {
    dir: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// Makes a new authority whose files are written to `dir`.
    pub fn new(dir: &Path) -> Result<Self, Error> {
        let name = "the authority";
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "bowline-testbed");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().map_err(|source| make_error(name, source))?;
        let issuer =
            CertifiedIssuer::self_signed(params, key).map_err(|source| make_error(name, source))?;
        let authority = Self { dir: dir.to_owned(), issuer };
        write(&authority.certificate(), &authority.issuer.pem())?;
        write(&authority.key(), &authority.issuer.key().serialize_pem())?;
        Ok(authority)
    }

    /// Certificate of the authority, which every client trusts.
    pub fn certificate(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// Key of the authority, with which the controller manager signs requests.
    pub fn key(&self) -> PathBuf {
        self.dir.join("ca.key")
    }

    /// Client certificate for a user, in a group if one is named.
    pub fn client(&self, file: &str, user: &str, group: Option<&str>) -> Result<Identity, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(file, params)
    }

    /// Serving certificate for this machine's loopback address and the bed's node address.
    pub fn server(&self, file: &str, names: &[&str]) -> Result<Identity, Error> {
        let names: Vec<String> =
            std::iter::once("localhost").chain(names.iter().copied()).map(str::to_owned).collect();
        let mut params =
            CertificateParams::new(names).map_err(|source| make_error(file, source))?;
        params.distinguished_name.push(DnType::CommonName, file);
        for address in [Ipv4Addr::LOCALHOST, NODE_ADDRESS] {
            params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(address)));
        }
        // etcd is its own client, with the certificate that it serves with.
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(file, params)
    }

    /// Key pair without a certificate, for signing service-account tokens.
    pub fn signing_key(&self, file: &str) -> Result<SigningKey, Error> {
        let pair = KeyPair::generate().map_err(|source| make_error(file, source))?;
        let key = SigningKey {
            private: self.dir.join(format!("{file}.key")),
            public: self.dir.join(format!("{file}.pub")),
        };
        write(&key.private, &pair.serialize_pem())?;
        write(&key.public, &pair.public_key_pem())?;
        Ok(key)
    }

    fn sign(&self, file: &str, mut params: CertificateParams) -> Result<Identity, Error> {
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().map_err(|source| make_error(file, source))?;
        let certificate =
            params.signed_by(&key, &self.issuer).map_err(|source| make_error(file, source))?;
        let identity = Identity {
            certificate: self.dir.join(format!("{file}.crt")),
            key: self.dir.join(format!("{file}.key")),
        };
        write(&identity.certificate, &certificate.pem())?;
        write(&identity.key, &key.serialize_pem())?;
        Ok(identity)
    }
}

fn make_error(name: &str, source: rcgen::Error) -> Error {
    Error::Make { name: name.to_owned(), source }
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|source| Error::Write { path: path.to_owned(), source })
}
