//! Requests that a server may still send after its Lease has expired.
//!
//! None, except a request that the system had almost accepted when the server was paused: it was checked right before,
//! and its connection existed. A connection that is made later carries nothing, because connecting checks the Lease
//! again.

use std::collections::BTreeMap;
use std::time::Instant;

use super::bucket::backup_name_of;
use super::recording_proxy::RecordedWrite;

/// Returns what was wrong with the writes of a server after it continued.
pub(crate) fn check_late_writes(
    writes: &[RecordedWrite],
    resumed_at: Instant,
    bucket: &str,
    ended: &BTreeMap<String, String>,
) -> Result<(), String> {
    let late = writes.iter().filter(|write| write.at >= resumed_at);
    // Between its pause and then, the server could do nothing.
    let (in_flight, new): (Vec<_>, Vec<_>) = late.partition(|write| write.connected < resumed_at);
    if !new.is_empty() {
        return Err(format!("a deposed server wrote {new:?}"));
    }
    if in_flight.len() > 1 {
        return Err(format!("more than one request was under way in that instant: {in_flight:?}"));
    }
    let prefix = format!("/{bucket}/");
    for write in in_flight {
        let path = write.path.split('?').next().unwrap_or_default();
        let Some(key) = path.strip_prefix(&prefix) else {
            return Err(format!("a request that went elsewhere: {write:?}"));
        };
        let is_done = (200..300).contains(&write.status);
        if is_done && backup_name_of(key).is_some_and(|name| ended.contains_key(name)) {
            return Err(format!("a deposed server changed a backup that had ended: {write:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ENDED: &str = "/bucket/backups/ended/velero-backup.json";
    const RUNS: &str = "/bucket/backups/runs/runs.tar.gz";
    const SCRATCH: &str = "/bucket/scratch/x";

    /// Seconds at which a connection was made and its request arrived.
    type Sent = (u64, u64, &'static str, u16);

    /// The server is paused at second 10 and continues at second 20.
    fn check(sent: &[Sent]) -> Result<(), String> {
        let begin = Instant::now();
        let second = |number| begin + Duration::from_secs(number);
        let writes: Vec<RecordedWrite> = sent
            .iter()
            .map(|(connected, at, path, status)| RecordedWrite {
                connected: second(*connected),
                at: second(*at),
                method: "PUT".to_owned(),
                path: (*path).to_owned(),
                status: *status,
            })
            .collect();
        let ended = BTreeMap::from([("ended".to_owned(), "1".to_owned())]);
        check_late_writes(&writes, second(20), "bucket", &ended)
    }

    #[test]
    fn one_harmless_request_in_flight_before_the_pause_is_accepted() {
        for harmless in [
            &[][..],
            &[(8, 9, ENDED, 200), (9, 9, RUNS, 200)],
            &[(9, 20, SCRATCH, 204)],
            &[(9, 20, RUNS, 200)],
            // The bucket has refused it.
            &[(9, 20, ENDED, 412)],
        ] {
            check(harmless).unwrap();
        }
    }

    #[test]
    fn any_other_write_after_the_pause_is_detected() {
        for (wrong, reason) in [
            (&[(20, 20, SCRATCH, 204)][..], "a deposed server wrote"),
            (&[(21, 22, ENDED, 412)], "a deposed server wrote"),
            (&[(9, 20, SCRATCH, 204), (21, 21, RUNS, 200)], "a deposed server wrote"),
            (&[(9, 20, SCRATCH, 204), (9, 20, RUNS, 200)], "more than one"),
            (&[(9, 20, ENDED, 200)], "changed a backup that had ended"),
            (&[(9, 20, "/bucket/backups/ended/ended-logs.gz?x", 200)], "changed a backup"),
            (&[(9, 20, "/other/backups/ended/x", 200)], "elsewhere"),
        ] {
            let error = check(wrong).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
