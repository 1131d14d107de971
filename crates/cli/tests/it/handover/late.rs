//! What a server may send that goes on after its time is over.
//!
//! Nothing, but for what the system had almost taken when it was paused: a request that was looked at in the very
//! instant before, and whose connection was there. A connection that is made afterwards carries nothing, since making
//! it takes another look.

use std::collections::BTreeMap;
use std::time::Instant;

use super::bucket::backup_of;
use super::tap::Write;

/// Says what was wrong with what a server wrote after it went on.
pub(crate) fn judge(
    writes: &[Write],
    goes_on: Instant,
    bucket: &str,
    ended: &BTreeMap<String, String>,
) -> Result<(), String> {
    let late = writes.iter().filter(|write| write.at >= goes_on);
    // Between its pause and then, the server could do nothing.
    let (begun, new): (Vec<_>, Vec<_>) = late.partition(|write| write.connected < goes_on);
    if !new.is_empty() {
        return Err(format!("a deposed server wrote {new:?}"));
    }
    if begun.len() > 1 {
        return Err(format!("more than one request was under way in that instant: {begun:?}"));
    }
    let prefix = format!("/{bucket}/");
    for write in begun {
        let path = write.path.split('?').next().unwrap_or_default();
        let Some(key) = path.strip_prefix(&prefix) else {
            return Err(format!("a request that went elsewhere: {write:?}"));
        };
        let is_done = (200..300).contains(&write.status);
        if is_done && backup_of(key).is_some_and(|name| ended.contains_key(name)) {
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

    /// When, in seconds, a connection was made and its request was there.
    type Sent = (u64, u64, &'static str, u16);

    /// The server is paused at second 10 and goes on at second 20.
    fn judged(sent: &[Sent]) -> Result<(), String> {
        let begin = Instant::now();
        let second = |number| begin + Duration::from_secs(number);
        let writes: Vec<Write> = sent
            .iter()
            .map(|(connected, at, path, status)| Write {
                connected: second(*connected),
                at: second(*at),
                method: "PUT".to_owned(),
                path: (*path).to_owned(),
                status: *status,
            })
            .collect();
        let ended = BTreeMap::from([("ended".to_owned(), "1".to_owned())]);
        judge(&writes, second(20), "bucket", &ended)
    }

    #[test]
    fn one_request_that_was_begun_before_a_pause_passes_if_it_is_harmless() {
        for harmless in [
            &[][..],
            &[(8, 9, ENDED, 200), (9, 9, RUNS, 200)],
            &[(9, 20, SCRATCH, 204)],
            &[(9, 20, RUNS, 200)],
            // The bucket has refused it.
            &[(9, 20, ENDED, 412)],
        ] {
            judged(harmless).unwrap();
        }
    }

    #[test]
    fn anything_else_that_is_written_after_a_pause_is_found() {
        for (wrong, reason) in [
            (&[(20, 20, SCRATCH, 204)][..], "a deposed server wrote"),
            (&[(21, 22, ENDED, 412)], "a deposed server wrote"),
            (&[(9, 20, SCRATCH, 204), (21, 21, RUNS, 200)], "a deposed server wrote"),
            (&[(9, 20, SCRATCH, 204), (9, 20, RUNS, 200)], "more than one"),
            (&[(9, 20, ENDED, 200)], "changed a backup that had ended"),
            (&[(9, 20, "/bucket/backups/ended/ended-logs.gz?x", 200)], "changed a backup"),
            (&[(9, 20, "/other/backups/ended/x", 200)], "elsewhere"),
        ] {
            let error = judged(wrong).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }
}
