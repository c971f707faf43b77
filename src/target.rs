//! What is measured: a device behind ports, or one that taut sets up and takes down. `taut generate` and `taut bench`.

use crate::exit::Failure;
use taut_lab::device::{Device, DeviceUnderTest, UnknownDevice};
use taut_port::PortSpec;

/// How it is named on the command line.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub struct Target {
    /// A port, such as memif:/run/a.sock or af_packet:eth0 (`taut ports` lists them), once or twice: the first sends,
    /// the last receives
    #[arg(long, value_name = "SPEC")]
    port: Vec<String>,
    /// A device that taut sets up and takes down: an id of `taut demo --list-devices`, or memif, af_packet, af_xdp or xdp,
    /// with options behind it: 'memif,flush=full(32, 50us),burst=64', 'af_packet,wait=sleep(50us)', 'af_xdp,function=mac-swap',
    /// memif,chain=FILE
    #[arg(long, value_name = "ID")]
    device: Option<String>,
}

impl Target {
    /// The device, if there is such a one and this machine can have it.
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
