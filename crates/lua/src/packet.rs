//! The view of packets and counters in scripts: the parts in Lua that all scripts share.

use crate::LuaState;
use mlua::{Error, Function, Table};
use std::net::Ipv6Addr;

impl LuaState {
    /// Makes batches of borrowed packets with named fields, as `packet.lua` describes them.
    ///
    /// # Errors
    /// Lua reports an error.
    pub fn packets(&self) -> mlua::Result<Table> {
        let lua = self.lua();
        let host = lua.create_table()?;
        host.set(
            "ip6_bytes",
            lua.create_function(|lua, text: mlua::LuaString| {
                let address: Option<Ipv6Addr> = text.to_str()?.parse().ok();
                match address {
                    Some(address) => lua.create_string(address.octets()),
                    None => Err(Error::runtime(format!(
                        "\"{}\": expected an IPv6 address such as 2001:db8::1",
                        text.to_string_lossy()
                    ))),
                }
            })?,
        )?;
        host.set(
            "ip6_text",
            lua.create_function(|_, bytes: mlua::LuaString| {
                let bytes: [u8; 16] = bytes.as_bytes()[..].try_into().map_err(Error::runtime)?;
                Ok(Ipv6Addr::from(bytes).to_string())
            })?,
        )?;
        lua.load(include_str!("packet.lua"))
            .set_name("=taut")
            .call((self.memory(), host))
    }

    /// Makes the Lua function by which a script gets the counter with a given name. `make` gets the name and returns
    /// functions that read and write the counter's number ([`LuaState::number`]).
    ///
    /// # Errors
    /// Lua reports an error.
    pub fn counters(&self, make: Function) -> mlua::Result<Function> {
        self.lua()
            .load(include_str!("counter.lua"))
            .set_name("=taut")
            .call(make)
    }
}
