//! The two-wheeled robot of NCSbench, from the matrices that its authors published.
//!
//! Source: Gallenmüller, dissertation (2021), section 6.2; `tum-lkn/NCSbench` (MIT), file
//! controller_simulation_matrices.mat, which has the discrete matrices for 30 and 35 ms. The continuous model is the
//! matrix logarithm of either: both agree to twelve digits.
//!
//! One thing is added to the published model: a lag of the gyroscope. The published model settles within 6 ms after a
//! change of voltage. NCSbench's filter averages the wheels' rate over the whole period, but reads the pitch rate at
//! the end of the period. NCSbench's controller balances the real robot. With the published model and an ideal
//! gyroscope, the loop is unstable when commands are applied 10 to 32 ms after the reading. A period multiplies errors
//! by up to -2.3. With a lag of 15 ms the loop is stable; a test in `simulation.rs` shows both.

use crate::model::{Model, Parts, Sensor};

/// Radius of a wheel, m.
pub const WHEEL_RADIUS_M: f64 = 0.0275;
/// Distance between the wheels, m.
pub const AXLE_M: f64 = 0.087;
/// Voltage at a duty cycle of 100 %, V; the duty cycle is set in whole percent.
pub const DUTY_VOLTAGE: f64 = 8.087;

/// Time constant of the gyroscope's lag, s. The lag is not published; with 15 ms, the loop of NCSbench's controller is
/// stable.
const GYROSCOPE_LAG_S: f64 = 0.015;

/// Weights of integral, wheel angle, pitch, their rates, yaw and yaw rate in the cost that the published gains
/// minimise. The weights are not published: these reproduce all 91 rows of the published table to half a millionth;
/// `controller/gains.rs` checks eleven of them. The gyroscope's lag has weight 0.
const WEIGHTS: [f64; 8] = [0.08, 1e-4, 0.1, 1e-4, 1e-4, 100.0, 1e-4, 0.0];

/// Name of the robot that lies on the ground.
pub(super) const LYING: &str = "robot-lying";
/// Name of the robot that leans on a stand.
pub(super) const ON_A_STAND: &str = "robot-on-a-stand";
/// Pitch of the robot on the ground, rad: where NCSbench's controller begins to integrate.
const LYING_RAD: f64 = 1.0325;
/// Pitch of the robot on a stand, rad (25 degrees). Motors with 8 V erect the robot from up to 30 degrees.
const STAND_RAD: f64 = 25.0 * std::f64::consts::PI / 180.0;
/// Voltage of the motors of the robot that lies on the ground, V. At least 21 V are needed to erect it.
const LYING_VOLTAGE: f64 = 24.0;

/// Returns the published robot leaning back on a stand at 25 degrees. It erects itself within its limits.
pub(super) fn on_a_stand() -> Model {
    down(ON_A_STAND, STAND_RAD, 8.0)
}

/// Returns the robot lying on its back as NCSbench's does, at 59.2 degrees, with motors that take 24 V. The published
/// 8 V lift its body by four degrees (`body.rs`).
pub(super) fn lying() -> Model {
    down(LYING, LYING_RAD, LYING_VOLTAGE)
}

fn down(name: &str, pitch_rad: f64, limit: f64) -> Model {
    let mut parts = robot().parts().clone();
    parts.name = name.to_owned();
    parts.start[1] = -pitch_rad;
    parts.step *= limit / parts.limit;
    parts.limit = limit;
    if name == ON_A_STAND {
        // A robot that has gone back to its stand has fallen.
        parts.bound = pitch_rad * 0.9;
    }
    whole(parts)
}

/// Returns the robot's model. Angles are in rad and voltages in V. A gyroscope reads the pitch rate in whole degrees
/// per second, and an encoder at each wheel reads whole degrees.
pub fn robot() -> Model {
    let names = [
        "wheel angle",
        "pitch",
        "wheel rate",
        "pitch rate",
        "yaw",
        "yaw rate",
        "gyroscope",
    ];
    let degrees = 1_f64.to_degrees();
    #[rustfmt::skip]
    let a = [
        [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0],
        [0.0, -210.785_502_590_388, -155.377_122_684_757, 155.377_122_684_757, 0.0, 0.0, 0.0],
        [0.0, 61.405_636_085_223, 19.268_879_677_199, -19.268_879_677_199, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, -133.935_351_747_696, 0.0],
        [0.0, 0.0, 0.0, 1.0 / GYROSCOPE_LAG_S, 0.0, 0.0, -1.0 / GYROSCOPE_LAG_S],
    ];
    let b = [
        [0.0, 0.0],
        [0.0, 0.0],
        [151.019_009_440_708, 151.019_009_440_708],
        [-18.728_414_271_043, -18.728_414_271_043],
        [0.0, 0.0],
        [-80.800_541_691_074, 80.800_541_691_074],
        [0.0, 0.0],
    ];
    let parts = Parts {
        name: "robot".to_owned(),
        states: names.map(str::to_owned).to_vec(),
        a: a.map(|row| row.to_vec()).to_vec(),
        b: b.map(|row| row.to_vec()).to_vec(),
        sensors: sensors(),
        integral: Some(0),
        balance: 1,
        bound: 45_f64.to_radians(),
        travel: 0,
        scale: [degrees, degrees],
        units: ["degrees".to_owned(), "degrees".to_owned()],
        start: vec![0.0; 7],
        limit: 8.0,
        step: DUTY_VOLTAGE / 100.0,
        period_ns: 35_000_000,
        weights: WEIGHTS.to_vec(),
        input_weight: 1.0,
    };
    whole(parts)
}

fn sensors() -> Vec<Sensor> {
    // The factor from yaw to the angle by which each wheel turns, in opposite directions.
    let turn = AXLE_M / WHEEL_RADIUS_M / 2.0;
    let degrees = 1_f64.to_degrees();
    let sensor = |name: &str, row: [f64; 7], noise, bias| Sensor {
        name: name.to_owned(),
        row: row.map(|factor| factor * degrees).to_vec(),
        resolution: 1.0,
        noise,
        bias,
    };
    vec![
        // Offset and noise of the readings are those in the authors' recording before the robot is lifted.
        sensor("gyroscope", [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0], 0.3, 0.3),
        sensor(
            "left encoder",
            [1.0, -1.0, 0.0, 0.0, -turn, 0.0, 0.0],
            0.0,
            0.0,
        ),
        sensor(
            "right encoder",
            [1.0, -1.0, 0.0, 0.0, turn, 0.0, 0.0],
            0.0,
            0.0,
        ),
    ]
}

/// Makes a model from parts that are constants in the source, so it cannot fail.
pub(super) fn whole(parts: Parts) -> Model {
    #[expect(
        clippy::expect_used,
        reason = "the parts are constants, and a test makes the model"
    )]
    Model::new(parts).expect("a plant of this room is whole")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::steps::Steps;

    /// The expected rows are those of Ad_35 and Bd_35 of controller_simulation_matrices.mat, in NCSbench's order of
    /// states.
    #[test]
    fn the_model_discretised_over_one_period_equals_the_published_matrix() {
        let (a, b) = robot().with_integral();
        let (ad, bd) = Steps::new(&a, &b).matrices(35_000_000);
        let published = [
            (0, 1, 0.035),
            (0, 2, -3.941_881_708_797_991e-4),
            (1, 4, 2.569_289_324_431_007e-2),
            (2, 2, 1.024_373_452_961_663),
            (2, 3, 3.253_088_798_763_971e-3),
            (3, 2, -3.010_255_709_098_237e-1),
            (4, 4, 9.122_903_191_215_346e-1),
            (6, 6, 9.207_496_302_965_837e-3),
        ];
        for (row, column, value) in published {
            assert!((ad[(row, column)] / value - 1.0).abs() < 1e-11, "{ad}");
        }
        let published = [
            (0, 0, 3.849_310_095_508_019e-4),
            (3, 1, 8.648_329_874_025_944e-1),
            (4, 0, -1.089_393_570_628_079e-1),
            (6, 0, -5.977_254_694_711_553e-1),
        ];
        for (row, column, value) in published {
            assert!((bd[(row, column)] / value - 1.0).abs() < 1e-11, "{bd}");
        }
    }
}
