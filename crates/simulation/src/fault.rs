//! Faults of the surroundings: what goes wrong, when, and how often.

use std::time::Duration;

use crate::prng::Prng;

/// Part of the world that is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Api,
    Bucket,
    Plugin,
    /// Commands in pods.
    Exec,
    /// Nothing is called: the scenario itself causes these.
    Scenario,
}

impl Part {
    /// Time of a way to this part or back.
    pub(crate) fn latency(self, random: &mut Prng) -> Duration {
        let millis = match self {
            Self::Api | Self::Exec => random.between(1, 8),
            Self::Bucket => random.between(2, 40),
            Self::Plugin => random.between(1, 300),
            Self::Scenario => 0,
        };
        Duration::from_millis(millis)
    }
}

macro_rules! fault_kinds {
    ($($name:ident = $text:literal in $part:ident,)+) => {
        /// Kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum FaultKind {
            $($name,)+
        }

        impl FaultKind {
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)+];

            pub(crate) fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)+
                }
            }

            pub(crate) fn part(self) -> Part {
                match self {
                    $(Self::$name => Part::$part,)+
                }
            }
        }
    };
}

fault_kinds! {
    ApiError = "api-error" in Api,
    ApiLostAnswer = "api-lost-answer" in Api,
    ApiSlow = "api-slow" in Api,
    ApiPartition = "api-partition" in Api,
    BucketError = "bucket-error" in Bucket,
    BucketLostAnswer = "bucket-lost-answer" in Bucket,
    BucketSlow = "bucket-slow" in Bucket,
    BucketHang = "bucket-hang" in Bucket,
    BucketFull = "bucket-full" in Bucket,
    BucketRefuses = "bucket-refuses" in Bucket,
    PluginError = "plugin-error" in Plugin,
    PluginLostAnswer = "plugin-lost-answer" in Plugin,
    PluginSlow = "plugin-slow" in Plugin,
    PluginHang = "plugin-hang" in Plugin,
    PluginLies = "plugin-lies" in Plugin,
    ExecError = "exec-error" in Exec,
    ExecLostAnswer = "exec-lost-answer" in Exec,
    ExecHang = "exec-hang" in Exec,
    LeaseTaken = "lease-taken" in Scenario,
    ClockJump = "clock-jump" in Scenario,
}

impl FaultKind {
    pub(crate) fn is_slow(self) -> bool {
        matches!(self, Self::ApiSlow | Self::BucketSlow | Self::PluginSlow)
    }

    pub(crate) fn loses_answer(self) -> bool {
        matches!(
            self,
            Self::ApiLostAnswer
                | Self::BucketLostAnswer
                | Self::PluginLostAnswer
                | Self::ExecLostAnswer
        )
    }

    pub(crate) fn hangs(self) -> bool {
        matches!(self, Self::ApiPartition | Self::BucketHang | Self::PluginHang | Self::ExecHang)
    }

    /// How long a call hangs, unless its caller gives it up. The API client has such a limit of its own.
    pub(crate) fn hang(self) -> Duration {
        match self {
            Self::ApiPartition => Duration::from_secs(30),
            // The limit of the plugin host, which processes have and these plugins have not.
            Self::PluginHang => Duration::from_mins(10),
            _ => Duration::from_hours(6),
        }
    }
}

/// Fault during a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
    /// In how many of a hundred calls it strikes.
    pub(crate) chance: u64,
}

impl Fault {
    pub(crate) fn is_active(&self, now: Duration) -> bool {
        (self.begin..self.end).contains(&now)
    }
}
