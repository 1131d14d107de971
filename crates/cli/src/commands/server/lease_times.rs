//! Times of the Lease. Each flag alone may be valid and the three together not, so they are checked when the command
//! line is parsed: at installation as well as by the server.

use std::time::Duration;

use bowline_server::lease::LeaseTimings;
use clap::error::ErrorKind;
use clap::{ArgMatches, Command, FromArgMatches};

use crate::flags;

/// As typed.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_field_names, reason = "they are the names of the flags")]
struct Flags {
    /// Time after the last renewal when a standby server may take over the Lease; whole seconds, at most 10m
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = flags::timeout)]
    leader_elect_lease_duration: Duration,

    /// Time after which an active server that cannot renew the Lease stops; shorter than the Lease
    /// duration
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = flags::timeout)]
    leader_elect_renew_deadline: Duration,

    /// Interval between Lease renewals; shorter than the renew deadline
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = flags::timeout)]
    leader_elect_retry_period: Duration,
}

/// Valid combination of Lease times.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeaseTimes(pub(super) LeaseTimings);

impl clap::Args for LeaseTimes {
    fn augment_args(command: Command) -> Command {
        Flags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flags::augment_args_for_update(command)
    }
}

impl FromArgMatches for LeaseTimes {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let flags = Flags::from_arg_matches(matches)?;
        let terms = LeaseTimings {
            duration: flags.leader_elect_lease_duration,
            renew_interval: flags.leader_elect_retry_period,
            renew_deadline: flags.leader_elect_renew_deadline,
        };
        terms.check().map_err(|error| clap::Error::raw(ErrorKind::ValueValidation, error))?;
        Ok(Self(terms))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct TestCommand {
        #[command(flatten)]
        times: LeaseTimes,
    }

    fn parse(words: &[&str]) -> Result<LeaseTimings, String> {
        let parsed = TestCommand::try_parse_from(["x"].iter().chain(words));
        parsed.map(|line| line.times.0).map_err(|error| error.to_string())
    }

    #[test]
    fn contradictory_lease_times_are_refused() {
        assert_eq!(parse(&[]), Ok(LeaseTimings::default()));
        let error = parse(&["--leader-elect-renew-deadline=20s"]).unwrap_err();
        assert!(error.contains("renew deadline 20s, Lease duration 15s"), "{error}");
        let longer = ["--leader-elect-renew-deadline=20s", "--leader-elect-lease-duration=30s"];
        assert_eq!(parse(&longer).unwrap().renew_deadline, Duration::from_secs(20));
        let error = parse(&["--leader-elect-lease-duration=601s"]).unwrap_err();
        assert!(error.contains("at most 600s"), "{error}");
        parse(&["--leader-elect-lease-duration=10m"]).unwrap();
    }
}
