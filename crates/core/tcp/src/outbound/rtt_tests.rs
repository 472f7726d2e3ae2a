//! RFC 6298, section by section.

use core::time::Duration;

use pagewire_testkit::given;
use proptest::prelude::*;

use super::RttEstimator;

const MS: Duration = Duration::from_millis(1);

fn estimator() -> RttEstimator {
    RttEstimator::new(200 * MS, Duration::from_secs(120))
}

#[test]
fn the_estimator_is_small() {
    assert!(size_of::<RttEstimator>() <= 40, "{}", size_of::<RttEstimator>());
}

#[test]
fn section_2_1_the_first_timeout_is_one_second() {
    assert_eq!(estimator().rto(), Duration::from_secs(1));
    assert_eq!(estimator().srtt(), None);
    assert_eq!(estimator().min(), None);
}

given! {
    let mut rtt = estimator();

    section_2_2_the_first_sample_sets_both_estimates {
        rtt.on_sample(100 * MS, 100 * MS);
        assert_eq!(rtt.srtt(), Some(100 * MS));
        assert_eq!(rtt.rttvar(), 50 * MS);
        // SRTT + 4 * RTTVAR
        assert_eq!(rtt.rto(), 300 * MS);
    }
    section_2_3_later_samples_move_the_estimates_by_an_eighth_and_a_quarter {
        rtt.on_sample(100 * MS, 100 * MS);
        rtt.on_sample(180 * MS, 180 * MS);
        assert_eq!(rtt.rttvar(), Duration::from_micros(57_500)); // 3/4 * 50 + 1/4 * 80
        assert_eq!(rtt.srtt(), Some(110 * MS)); // 7/8 * 100 + 1/8 * 180
        assert_eq!(rtt.rto(), 340 * MS);
        assert_eq!(rtt.min(), Some(100 * MS));
    }
    /// Linux: the lower bound is room beyond the round trip, not the least timeout.
    a_steady_round_trip_leaves_the_lower_bound_on_top_of_it {
        for _ in 0..200 {
            rtt.on_sample(30 * MS, 30 * MS);
        }
        assert_eq!(rtt.rto(), 230 * MS);
        let mut near = estimator();
        for _ in 0..200 {
            near.on_sample(Duration::from_nanos(900), Duration::from_nanos(900));
        }
        assert_eq!(near.rto(), 200 * MS + Duration::from_nanos(900));
    }
    section_2_5_the_timeout_has_an_upper_bound {
        rtt.on_sample(Duration::from_secs(100), Duration::from_secs(100));
        assert_eq!(rtt.rto(), Duration::from_secs(120));
    }
    section_5_5_each_timeout_doubles_up_to_the_bound_and_never_overflows {
        let expected = [1u64, 2, 4, 8, 16, 32, 64, 120, 120];
        for seconds in expected {
            assert_eq!(rtt.rto(), Duration::from_secs(seconds));
            rtt.on_backoff();
        }
        for _ in 0..300 {
            rtt.on_backoff();
            assert_eq!(rtt.rto(), Duration::from_secs(120));
        }
    }
    section_5_a_new_sample_ends_the_doubling {
        rtt.on_sample(100 * MS, 100 * MS);
        rtt.on_backoff();
        assert_eq!(rtt.rto(), 600 * MS);
        rtt.on_sample(100 * MS, 100 * MS);
        assert_eq!(rtt.backoff(), 0);
        assert!(rtt.rto() < 600 * MS);
    }
    section_5_7_after_a_lost_syn_data_begins_with_three_seconds {
        rtt.on_backoff();
        rtt.on_syn_timed_out();
        assert_eq!(rtt.rto(), Duration::from_secs(3));
        rtt.on_sample(10 * MS, 10 * MS);
        assert!(rtt.rto() < Duration::from_secs(1));
    }
}

proptest! {
    #[test]
    fn the_timeout_stays_within_its_bounds_and_above_the_round_trip(
        samples in prop::collection::vec(0u64..=u64::MAX, 1..50),
        backoffs in 0..20,
    ) {
        let mut rtt = estimator();
        for sample in samples {
            rtt.on_sample(Duration::from_nanos(sample), Duration::from_nanos(sample));
            let srtt = rtt.srtt().unwrap();
            prop_assert!(rtt.rto() >= 200 * MS);
            prop_assert!(rtt.rto() <= Duration::from_secs(120));
            prop_assert!(rtt.rto() >= srtt.min(Duration::from_secs(120)));
            prop_assert!(rtt.min().unwrap() <= Duration::from_nanos(sample.max(1)));
        }
        let mut last = rtt.rto();
        for _ in 0..backoffs {
            rtt.on_backoff();
            prop_assert!(rtt.rto() >= last);
            last = rtt.rto();
        }
    }
}
