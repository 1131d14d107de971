//! Certificates for one bed: an authority of its own, and what it signed.
//!
//! The identities are those that Kubernetes knows: the API server believes what a client
//! certificate says about user and groups, and RBAC decides from there.

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

/// Why the certificates could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A certificate could not be made.
    #[error("cannot make the certificate of {name}")]
    Make {
        /// Whose certificate.
        name: String,
        #[source]
        /// What the library said.
        source: rcgen::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        #[source]
        /// What the system said.
        source: io::Error,
    },
}

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate, PEM.
    pub certificate: PathBuf,
    /// The private key, PEM, readable by its owner only.
    pub key: PathBuf,
}

/// A key pair, as files.
#[derive(Clone, Debug)]
pub struct SigningKey {
    /// The private key, PEM, readable by its owner only.
    pub private: PathBuf,
    /// The public key, PEM.
    pub public: PathBuf,
}

/// The certificate authority of a bed, with a folder for what it signs.
pub struct Authority {
    dir: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// Makes a new authority whose files go to `dir`.
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

    /// The authority's certificate, which every client trusts.
    pub fn certificate(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    /// The authority's key; the controller manager signs requests with it.
    pub fn key(&self) -> PathBuf {
        self.dir.join("ca.key")
    }

    /// A client certificate for a user, in a group if one is named.
    pub fn client(&self, file: &str, user: &str, group: Option<&str>) -> Result<Identity, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(file, params)
    }

    /// A serving certificate for this machine's loopback address and the bed's node address.
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

    /// A key pair without a certificate, for signing service-account tokens.
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
