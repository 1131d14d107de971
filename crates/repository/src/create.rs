//! Creates a repository as Velero does.

use std::sync::Arc;

use ring::rand::{SecureRandom as _, SystemRandom};
use serde::Serialize;
use zeroize::Zeroizing;

use crate::blobs::{self, Blobs, Store};
use crate::format::{self, BLOB_CONFIG_BLOB, FORMAT_BLOB, MAX_FORMAT_BLOB, NewFormat, Password};
use crate::json::base64_bytes;
use crate::manifest::TYPE_LABEL;
use crate::repository::{Repository, well_known_blob};
use crate::writer::{Clock, Error, SessionOwner, Writer};

/// Blob by which Velero knows a repository that it initialized.
const VELERO_BLOB: &str = "udmrepo.Repository";

const HOUR_NANOSECONDS: i64 = 3_600_000_000_000;

#[derive(Serialize)]
struct VeleroBlob {
    #[serde(rename = "uniqueID", with = "base64_bytes")]
    unique_id: Vec<u8>,
}

/// Kopia's parameters of maintenance.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct MaintenanceParameters {
    owner: String,
    quick: MaintenanceCycle,
    full: MaintenanceCycle,
    log_retention: LogRetention,
    extend_object_locks: bool,
    list_parallelism: u32,
}

#[derive(Serialize)]
struct MaintenanceCycle {
    enabled: bool,
    interval: i64,
}

#[derive(Serialize)]
struct LogRetention {
    #[serde(rename = "maxTotalSize")]
    total_size: i64,
    #[serde(rename = "maxCount")]
    count: i64,
    #[serde(rename = "maxAge")]
    age: i64,
}

/// Creates a repository with Velero's settings, owned by `owner`, and opens it.
///
/// The format blob comes last of what kopia needs, so that a repository is complete or does not exist; Velero's own
/// blob comes at the end, and Velero completes what is missing before it.
pub async fn create(
    blobs: Arc<dyn Blobs>,
    password: &Password,
    owner: SessionOwner,
    clock: Clock,
) -> Result<Repository, Error> {
    let store = Store::new(Arc::clone(&blobs));
    let format_blob = well_known_blob(FORMAT_BLOB);
    match store.get(&format_blob, MAX_FORMAT_BLOB).await {
        Err(blobs::Error::NotFound(_)) => {}
        Err(error) => return Err(error.into()),
        Ok(_) => return Err(Error::Exists),
    }
    let new = new_format()?;
    let (unique_id, nonces) = (new.unique_id, [random()?, random()?]);
    let owned = password.clone();
    let encode = move || format::encode_new(&new, &owned, nonces);
    let encoded = tokio::task::spawn_blocking(encode).await.map_err(|_| Error::Interrupted)?;
    let encoded = encoded.map_err(|error| Error::Format(Box::new(error)))?;
    store.put(&well_known_blob(BLOB_CONFIG_BLOB), encoded.blob_config.into()).await?;
    store.put(&format_blob, encoded.format.into()).await?;

    let repository = Repository::open_with_key(blobs, encoded.key, clock()).await?;
    let mut writer = Writer::new(&repository, owner.clone(), clock).await?;
    let parameters = maintenance_parameters(&owner);
    let json = serde_json::to_string(&parameters).map_err(Error::EncodeManifest)?;
    let labels = [(TYPE_LABEL.to_owned(), "maintenance".to_owned())].into();
    writer.add_manifest(labels, json)?;
    writer.flush().await?;
    drop(writer);
    let velero = VeleroBlob { unique_id: unique_id.to_vec() };
    let velero = serde_json::to_vec(&velero).map_err(Error::EncodeManifest)?;
    store.put(&well_known_blob(VELERO_BLOB), velero.into()).await?;
    Ok(repository)
}

/// Kopia's defaults: quick maintenance each hour, full maintenance each day.
fn maintenance_parameters(owner: &SessionOwner) -> MaintenanceParameters {
    let cycle = |hours| MaintenanceCycle { enabled: true, interval: hours * HOUR_NANOSECONDS };
    MaintenanceParameters {
        owner: format!("{}@{}", owner.user, owner.host),
        quick: cycle(1),
        full: cycle(24),
        log_retention: LogRetention {
            total_size: 1 << 30,
            count: 10_000,
            age: 30 * 24 * HOUR_NANOSECONDS,
        },
        extend_object_locks: false,
        list_parallelism: 0,
    }
}

fn new_format() -> Result<NewFormat, Error> {
    Ok(NewFormat {
        unique_id: random()?,
        secret: Zeroizing::new(random()?),
        master_key: Zeroizing::new(random()?),
    })
}

fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Error::Random)?;
    Ok(bytes)
}
