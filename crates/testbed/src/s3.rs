//! An S3 server on a loopback port, with throw-away credentials and its buckets in the bed.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::process::Process;
use crate::program::{self, Program};
use crate::{Bed, Error, port};

const START_TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const RANDOM_DEVICE: &str = "/dev/urandom";

/// Region that the server reports.
pub const REGION: &str = "us-east-1";

/// Running S3 server. Dropping it ends it.
#[derive(Debug)]
pub struct S3 {
    _process: Process,
    port: u16,
    buckets: PathBuf,
    credentials: Credentials,
    credentials_file: PathBuf,
}

/// Key with which a client signs its requests.
#[derive(Clone)]
pub struct Credentials {
    /// Id of the key.
    pub access_key: String,
    /// Secret part of the key.
    pub secret_key: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

impl S3 {
    /// Starts a server in `bed` and waits until it answers.
    pub async fn start(bed: &Bed) -> Result<Self, Error> {
        if bed.isolation().is_some() {
            return Err(Error::Isolated("the S3 server"));
        }
        let [binary] = program::locate([Program::Versitygw]).await?;
        let buckets = bed.subdir("buckets").map_err(Error::io("create", bed.dir()))?;
        let credentials = Credentials {
            access_key: "bowline-testbed".to_owned(),
            secret_key: random_key().map_err(Error::io("read", Path::new(RANDOM_DEVICE)))?,
        };
        let credentials_file = bed.dir().join("s3-credentials");
        let text = format!(
            "[default]\naws_access_key_id={}\naws_secret_access_key={}\n",
            credentials.access_key, credentials.secret_key
        );
        std::fs::write(&credentials_file, text).map_err(Error::io("write", &credentials_file))?;

        let (process, port) = port::with_free_ports(async |[port]| {
            let process = start_on(bed, &binary, &buckets, &credentials, port).await?;
            Ok((process, port))
        })
        .await?;
        Ok(Self { _process: process, port, buckets, credentials, credentials_file })
    }

    /// Address of the server, for `s3Url`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Key that the server accepts.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// The same as a file in the format of the AWS tools.
    pub fn credentials_file(&self) -> &Path {
        &self.credentials_file
    }

    /// Creates a bucket unless it exists. Returns its folder, in which objects are files.
    pub fn create_bucket(&self, name: &str) -> io::Result<PathBuf> {
        let folder = self.buckets.join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }
}

/// The port is open to every user of this machine, so the key must not be guessable.
pub(crate) fn random_key() -> io::Result<String> {
    let mut bytes = [0_u8; 16];
    File::open(RANDOM_DEVICE)?.read_exact(&mut bytes)?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

async fn start_on(
    bed: &Bed,
    binary: &Path,
    buckets: &Path,
    credentials: &Credentials,
    port: u16,
) -> Result<Process, Error> {
    // Another server may have taken the port; only this server knows this path.
    let health = format!("/health-{}", bed.id());
    let mut command = Command::new(binary);
    command
        .args(["--port", &format!("127.0.0.1:{port}"), "--region", REGION])
        .args(["--health", &health, "--quiet", "--keep-alive", "posix"])
        .arg(buckets)
        .env("ROOT_ACCESS_KEY", &credentials.access_key)
        .env("ROOT_SECRET_KEY", &credentials.secret_key);
    let mut process = Process::start(bed, "versitygw", command)?;
    let answers = || responds(port, &health);
    process.wait_until(START_TIMEOUT, answers).await?;
    Ok(process)
}

/// `Some` if the server on `port` is healthy. One request, so no library.
async fn responds(port: u16, path: &str) -> Option<()> {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.ok()?;
    (&answer == b"HTTP/1.1 200").then_some(())
}
