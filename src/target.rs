//! The target of a measurement: a device behind ports, or one that taut starts and stops. `taut generate` and `taut
//! bench` use it.

use crate::exit::Failure;
use taut_bench::device::{Device, DeviceUnderTest, UnknownDevice};
use taut_port::PortSpec;

/// The target on the command line.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub struct Target {
    /// Port, such as memif:/run/a.sock or af_packet:eth0 (see `taut ports`), once or twice: the first sends, the last
    /// receives; instead of --device
    #[arg(long, value_name = "SPEC")]
    port: Vec<String>,
    /// Device that taut sets up and removes: an id of `taut demo --list-devices`, also with options:
    /// 'memif,flush=full(32, 50us)'; instead of --port
    #[arg(long, value_name = "ID")]
    device: Option<String>,
}

impl Target {
    /// Returns the device under test, if it exists and this machine supports it.
    pub fn device_under_test(&self) -> Result<DeviceUnderTest, Failure> {
        match &self.device {
            Some(id) => Ok(DeviceUnderTest::Made(Box::new(Device::named(id)?))),
            None if self.port.len() > 2 => Err(Failure::Input(
                "give one or two --port: one to send, one to receive".to_string(),
            )),
            None => {
                let specs = self.port.iter().map(|p| PortSpec::parse(p));
                Ok(DeviceUnderTest::Ports(specs.collect::<Result<_, _>>()?))
            }
        }
    }
}

impl From<UnknownDevice> for Failure {
    fn from(e: UnknownDevice) -> Self {
        match e {
            UnknownDevice::Name(_) => Self::Input(e.to_string()),
            UnknownDevice::Missing { .. } => Self::Missing(e.to_string()),
        }
    }
}
