//! A stand-in for the part of Amazon EC2 that volume snapshots need: its Query API on a loopback port, with volumes
//! that hold a text each.
//!
//! Requests must be signed with its key, as with the real service, so that wrong credentials give the same errors. It
//! rejects unknown actions, and answers a bounded number of requests in total.

mod signature;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::Error;
use crate::s3::{Credentials, RANDOM_DEVICE, random_key};

/// Region that the stand-in reports.
pub const REGION: &str = "us-east-1";

/// Largest request; those of plugins have a few hundred bytes.
const MAX_REQUEST_BYTES: usize = 64 << 10;
/// Number of requests answered. Memory grows only with requests, so this bounds it.
const MAX_REQUESTS: usize = 10_000;
/// Number of tags that a resource may have, as at Amazon.
const MAX_TAGS: usize = 50;

/// Tags of a volume or a snapshot.
pub type Tags = BTreeMap<String, String>;

/// Running stand-in. Dropping it ends it.
#[derive(Debug)]
pub struct Ec2 {
    address: SocketAddr,
    account: Arc<Account>,
    server: JoinHandle<()>,
}

#[derive(Debug)]
struct Account {
    credentials: Credentials,
    resources: Mutex<Ec2Resources>,
}

/// All volumes, snapshots and calls.
#[derive(Debug, Default)]
struct Ec2Resources {
    volumes: BTreeMap<String, Volume>,
    snapshots: BTreeMap<String, Snapshot>,
    calls: Vec<String>,
}

/// EBS volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Volume type, such as `gp3` or `io1`.
    pub volume_type: String,
    /// Operations per second, if provisioned.
    pub iops: Option<u32>,
    /// Availability zone.
    pub zone: String,
    /// Tags of the volume.
    pub tags: Tags,
    /// Text that stands for the data.
    pub content: String,
}

/// Snapshot of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Volume that was snapshotted.
    pub volume: String,
    /// Tags of the snapshot.
    pub tags: Tags,
    /// Content of the volume at that time.
    pub content: String,
}

impl Ec2 {
    /// Starts a stand-in, which serves as long as the current runtime lives.
    pub async fn start() -> Result<Self, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(Error::Port)?;
        let address = listener.local_addr().map_err(Error::Port)?;
        let secret_key = random_key().map_err(Error::io("read", Path::new(RANDOM_DEVICE)))?;
        let credentials = Credentials { access_key: "AKIABOWLINETESTBED".to_owned(), secret_key };
        let account = Arc::new(Account { credentials, resources: Mutex::default() });
        let router = Router::new()
            .route("/", post(handle_request))
            .layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
            .with_state(Arc::clone(&account));
        let server = tokio::spawn(async move {
            // The server ends when its task is aborted.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address, account, server })
    }

    /// Key that the stand-in accepts.
    pub fn credentials(&self) -> &Credentials {
        &self.account.credentials
    }

    /// Profile in the format of the AWS tools, with a key and the address of this stand-in.
    pub fn profile(&self, credentials: &Credentials) -> String {
        let Credentials { access_key, secret_key } = credentials;
        format!(
            "[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\n\
             endpoint_url = http://{}\n",
            self.address
        )
    }

    /// Creates or replaces a volume.
    pub fn put_volume(&self, id: &str, volume: Volume) {
        self.account.resources.lock().volumes.insert(id.to_owned(), volume);
    }

    /// Removes a volume.
    pub fn remove_volume(&self, id: &str) {
        self.account.resources.lock().volumes.remove(id);
    }

    /// Volume with this id.
    pub fn volume(&self, id: &str) -> Option<Volume> {
        self.account.resources.lock().volumes.get(id).cloned()
    }

    /// All snapshots, by id.
    pub fn snapshots(&self) -> BTreeMap<String, Snapshot> {
        self.account.resources.lock().snapshots.clone()
    }

    /// Actions requested with the right key, in order.
    pub fn calls(&self) -> Vec<String> {
        self.account.resources.lock().calls.clone()
    }
}

impl Drop for Ec2 {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Account {}

/// Reason for rejecting a request.
#[derive(Debug)]
struct Ec2Error {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Ec2Error {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code, message: message.into() }
    }
}

/// Form of a request: `SnapshotId.1=snap-1&TagSpecification.1.Tag.1.Key=a`.
struct RequestForm(BTreeMap<String, String>);

impl RequestForm {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn require(&self, key: &str) -> Result<&str, Ec2Error> {
        let missing =
            || Ec2Error::new("MissingParameter", format!("The request must contain {key}"));
        self.get(key).filter(|value| !value.is_empty()).ok_or_else(missing)
    }

    /// Tags for the resource to be created.
    fn tags(&self) -> Tags {
        let of = |number, part| self.get(&format!("TagSpecification.1.Tag.{number}.{part}"));
        let tag = |number| Some((of(number, "Key")?.to_owned(), of(number, "Value")?.to_owned()));
        (1..=MAX_TAGS).map_while(tag).collect()
    }
}

async fn handle_request(
    State(account): State<Arc<Account>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let request = "0c1d2e3f-bowline";
    let (status, text) = match run_action(&account, &headers, &body) {
        Ok((action, answer)) => {
            let xmlns = "http://ec2.amazonaws.com/doc/2016-11-15/";
            let text = format!(
                "<{action}Response xmlns=\"{xmlns}\"><requestId>{request}</requestId>{answer}\
                 </{action}Response>"
            );
            (StatusCode::OK, text)
        }
        Err(Ec2Error { status, code, message }) => {
            let message = escape(&message);
            let text = format!(
                "<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error>\
                 </Errors><RequestID>{request}</RequestID></Response>"
            );
            (status, text)
        }
    };
    (status, [("content-type", "text/xml;charset=UTF-8")], text).into_response()
}

/// Runs the action of a request and returns its answer.
fn run_action(
    account: &Account,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<(String, String), Ec2Error> {
    if !signature::is_valid(headers, body, &account.credentials) {
        return Err(Ec2Error {
            status: StatusCode::UNAUTHORIZED,
            ..Ec2Error::new(
                "AuthFailure",
                "AWS was not able to validate the provided access credentials",
            )
        });
    }
    let form = RequestForm(form_urlencoded::parse(body).into_owned().collect());
    let action = form.require("Action")?.to_owned();
    let mut resources = account.resources.lock();
    if resources.calls.len() >= MAX_REQUESTS {
        return Err(Ec2Error::new("RequestLimitExceeded", "Request limit exceeded."));
    }
    resources.calls.push(action.clone());
    let answer = match action.as_str() {
        "DescribeVolumes" => resources.describe_volume(form.require("VolumeId.1")?),
        "CreateSnapshot" => resources.create_snapshot(form.require("VolumeId")?, form.tags()),
        "DescribeSnapshots" => resources.describe_snapshot(form.require("SnapshotId.1")?),
        "CreateVolume" => resources.create_volume(&form),
        "DeleteSnapshot" => resources.delete_snapshot(form.require("SnapshotId")?),
        _ => Err(Ec2Error::new("InvalidAction", format!("The action {action} is not known here"))),
    }?;
    Ok((action, answer))
}

impl Ec2Resources {
    fn find_volume(&self, id: &str) -> Result<&Volume, Ec2Error> {
        let none = || {
            Ec2Error::new("InvalidVolume.NotFound", format!("The volume '{id}' does not exist."))
        };
        self.volumes.get(id).ok_or_else(none)
    }

    fn find_snapshot(&self, id: &str) -> Result<&Snapshot, Ec2Error> {
        let none = || {
            Ec2Error::new(
                "InvalidSnapshot.NotFound",
                format!("The snapshot '{id}' does not exist."),
            )
        };
        self.snapshots.get(id).ok_or_else(none)
    }

    /// Unused id: each call creates one resource at most.
    fn id(&self, prefix: &str) -> String {
        format!("{prefix}-{:017x}", self.calls.len())
    }

    fn describe_volume(&self, id: &str) -> Result<String, Ec2Error> {
        let Volume { volume_type, iops, zone, tags, .. } = self.find_volume(id)?;
        let iops = iops.map(|iops| format!("<iops>{iops}</iops>")).unwrap_or_default();
        Ok(format!(
            "<volumeSet><item><volumeId>{}</volumeId><volumeType>{}</volumeType>{iops}\
             <availabilityZone>{}</availabilityZone><status>in-use</status>{}</item></volumeSet>",
            escape(id),
            escape(volume_type),
            escape(zone),
            tag_set(tags),
        ))
    }

    fn create_snapshot(&mut self, volume: &str, tags: Tags) -> Result<String, Ec2Error> {
        let content = self.find_volume(volume)?.content.clone();
        let id = self.id("snap");
        let answer = format!("<snapshotId>{id}</snapshotId><status>pending</status>");
        self.snapshots.insert(id, Snapshot { volume: volume.to_owned(), tags, content });
        Ok(answer)
    }

    fn describe_snapshot(&self, id: &str) -> Result<String, Ec2Error> {
        let Snapshot { volume, tags, .. } = self.find_snapshot(id)?;
        Ok(format!(
            "<snapshotSet><item><snapshotId>{}</snapshotId><volumeId>{}</volumeId>\
             <status>completed</status><encrypted>false</encrypted>{}</item></snapshotSet>",
            escape(id),
            escape(volume),
            tag_set(tags),
        ))
    }

    fn create_volume(&mut self, form: &RequestForm) -> Result<String, Ec2Error> {
        let content = self.find_snapshot(form.require("SnapshotId")?)?.content.clone();
        let iops = form.get("Iops").map(str::parse::<u32>).transpose();
        let iops = iops.map_err(|_| Ec2Error::new("InvalidParameterValue", "Iops is no number"))?;
        let volume = Volume {
            volume_type: form.require("VolumeType")?.to_owned(),
            iops,
            zone: form.require("AvailabilityZone")?.to_owned(),
            tags: form.tags(),
            content,
        };
        let id = self.id("vol");
        let answer = format!("<volumeId>{id}</volumeId><status>creating</status>");
        self.volumes.insert(id, volume);
        Ok(answer)
    }

    fn delete_snapshot(&mut self, id: &str) -> Result<String, Ec2Error> {
        self.find_snapshot(id)?;
        self.snapshots.remove(id);
        Ok("<return>true</return>".to_owned())
    }
}

fn tag_set(tags: &Tags) -> String {
    let mut text = "<tagSet>".to_owned();
    for (key, value) in tags {
        let (key, value) = (escape(key), escape(value));
        // Writing into a string cannot fail.
        let _ = write!(text, "<item><key>{key}</key><value>{value}</value></item>");
    }
    text.push_str("</tagSet>");
    text
}

/// Escapes a text for XML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> RequestForm {
        RequestForm(form_urlencoded::parse(text.as_bytes()).into_owned().collect())
    }

    #[test]
    fn snapshot_outlives_its_volume_and_can_create_another() {
        let mut resources = Ec2Resources::default();
        let volume = Volume { content: "42".to_owned(), ..Volume::default() };
        resources.volumes.insert("vol-1".to_owned(), volume);
        resources.calls.push("CreateSnapshot".to_owned());
        let tags =
            form("TagSpecification.1.Tag.1.Key=a%2Fb&TagSpecification.1.Tag.1.Value=%3Cc%3E");
        let answer = resources.create_snapshot("vol-1", tags.tags()).unwrap();
        let id = resources.snapshots.keys().next().cloned().unwrap();
        assert!(answer.contains(&id), "{answer}");
        resources.volumes.clear();
        let described = resources.describe_snapshot(&id).unwrap();
        assert!(described.contains("<key>a/b</key><value>&lt;c&gt;</value>"), "{described}");

        let wanted = format!("SnapshotId={id}&VolumeType=io1&Iops=300&AvailabilityZone=z");
        resources.create_volume(&form(&wanted)).unwrap();
        let created = resources.volumes.values().next().unwrap();
        assert_eq!(
            (created.content.as_str(), created.iops, created.zone.as_str()),
            ("42", Some(300), "z")
        );
        resources.delete_snapshot(&id).unwrap();
        assert_eq!(resources.delete_snapshot(&id).unwrap_err().code, "InvalidSnapshot.NotFound");
        assert_eq!(
            resources.create_volume(&form(&wanted)).unwrap_err().code,
            "InvalidSnapshot.NotFound"
        );
    }
}
