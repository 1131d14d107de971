//! When servers are interrupted.

use std::time::Duration;

use super::say;
use super::tap::{Held, Trap};

const SEED: &str = "BOWLINE_TEST_SEED";

pub(crate) const RECORD: &str = "/velero-backup.json";
const ARCHIVE: &str = ".tar.gz";
const LOG: &str = "-logs.gz";
const LIST: &str = "-resource-list.json.gz";

/// When a server is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// After some time.
    Any,
    /// When it has sent a request, which never comes back.
    Sent(Trap),
    /// When its request was broken off, and is about to be sent again.
    TriesAgain(Trap),
    /// When it has sent a request, which is held until its time is over. Then it goes on, and what comes of it is
    /// the first thing that the server sees.
    Late(Trap),
}

const fn before(method: &'static str, end: &'static str) -> Trap {
    Trap { method, end, held: Held::Before }
}

const fn after(method: &'static str, end: &'static str) -> Trap {
    Trap { method, end, held: Held::After }
}

/// When servers are paused.
pub(crate) const PAUSES: [Moment; 16] = [
    Moment::Any,
    Moment::Any,
    Moment::Any,
    Moment::Sent(before("PUT", RECORD)),
    Moment::Sent(after("PUT", RECORD)),
    Moment::Sent(before("PUT", ARCHIVE)),
    Moment::TriesAgain(before("PUT", RECORD)),
    Moment::TriesAgain(before("PUT", ARCHIVE)),
    Moment::TriesAgain(before("PUT", ARCHIVE)),
    Moment::TriesAgain(before("PUT", LOG)),
    // The bucket has said that there is no record. The server hears it when there is one.
    Moment::Late(after("HEAD", RECORD)),
    Moment::Late(after("HEAD", RECORD)),
    Moment::Late(before("PUT", RECORD)),
    // Other files follow at once.
    Moment::Late(after("PUT", ARCHIVE)),
    Moment::Late(after("PUT", ARCHIVE)),
    Moment::Late(after("PUT", LIST)),
];

/// When servers are killed.
pub(crate) const KILLS: [Moment; 16] = [
    Moment::Any,
    Moment::Any,
    Moment::Any,
    Moment::Any,
    Moment::Any,
    Moment::Any,
    Moment::Any,
    Moment::Any,
    Moment::Sent(before("PUT", RECORD)),
    Moment::Sent(before("PUT", RECORD)),
    Moment::Sent(after("PUT", RECORD)),
    Moment::Sent(after("PUT", RECORD)),
    Moment::Sent(before("PUT", ARCHIVE)),
    Moment::Sent(after("PUT", ARCHIVE)),
    Moment::Sent(after("PUT", LOG)),
    Moment::Sent(after("PUT", LIST)),
];

/// Numbers that look random, and are the same for the same seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn from_environment() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = std::env::var(SEED).map_or(now.as_secs(), |seed| seed.parse().unwrap());
        say(&format!("{SEED}={seed}"));
        Self(seed)
    }

    /// A number below another.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % u64::try_from(end).unwrap()).unwrap()
    }

    /// A time shorter than another.
    pub(crate) fn time(&mut self, end: Duration) -> Duration {
        let micros = self.below(usize::try_from(end.as_micros()).unwrap());
        Duration::from_micros(u64::try_from(micros).unwrap())
    }

    pub(crate) fn shuffled<T: Copy>(&mut self, items: &[T]) -> Vec<T> {
        let mut items = items.to_vec();
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
        items
    }
}
