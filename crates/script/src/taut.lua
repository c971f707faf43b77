-- The interface of a generator's script: the table `taut`, and the fields of packets that are sent or arrive. It uses
-- only functions that are safe with any arguments, so nothing in this file has to be hidden from scripts.

local memory, packets, counter, host = ...
local mark, latency_ns = memory.mark, memory.latency_ns
local type, error, setmetatable, tostring, pairs, ipairs = type, error, setmetatable, tostring, pairs, ipairs
local format = string.format

-- ---- packets and batches ----

local methods, getters, batch, fill = packets.methods, packets.getters, packets.batch, packets.fill

function methods.send_back(self)
    mark(self[1], 1)
end

function methods.send_on(self)
    mark(self[1], 2)
end

function methods.resize(self, n)
    memory.resize(self[1], n)
end

function getters.stream(self)
    return memory.stream(self[1])
end

function getters.sequence(self)
    return memory.sequence(self[1])
end

function getters.arrived_ns(self)
    local ns = memory.arrived_ns(self[1])
    return ns >= 0 and ns or nil
end

function getters.port_stamp(self)
    local stamp = memory.port_stamp(self[1])
    return stamp >= 0 and stamp or nil
end

function getters.latency_ns(self)
    local ns = latency_ns(self[1])
    return ns >= 0 and ns or nil
end

-- Calls `work` with a batch of the first `n` packets.
local function with_batch(work, n)
    fill(n)
    return work(batch)
end

-- ---- the table `taut` ----

local taut = {
    args = host.args, ip4 = packets.ip4, ip4_text = packets.ip4_text, mac = packets.mac, mac_text = packets.mac_text,
}

local function check(value, want, what)
    if type(value) ~= want then
        error(format("%s: expected a %s, got %s", what, want, type(value)), 0)
    end
    return value
end

function taut.port(index)
    local spec = host.port(check(index, "number", "taut.port"))
    return { index = index, spec = spec }
end

function taut.ports()
    return host.ports
end

local function check_keys(what, options, known)
    for key in pairs(options) do
        local is_known = false
        for _, name in ipairs(known) do
            is_known = is_known or key == name
        end
        if not is_known then
            error(host.unknown_key(what, tostring(key), known), 0)
        end
    end
end

-- Makes a stream. `beside` lists the keys of a trial, if these are valid in addition to the keys of the stream.
local function make_stream(settings, beside)
    check(settings, "table", "taut.stream")
    local stream = { craft = settings.craft, stamp = settings.stamp, settings = {} }
    for key, value in pairs(settings) do
        if key ~= "craft" and key ~= "stamp" then
            stream.settings[key] = value
        end
    end
    if stream.craft ~= nil then
        check(stream.craft, "function", "craft")
    elseif stream.stamp ~= nil then
        error("stamp: only streams with a craft function can do without stamps", 0)
    end
    host.check_stream(stream.settings, beside)
    return stream
end

-- Makes a stream with the keys of traffic files; further keys are craft = function(batch) and stamp = false.
function taut.stream(settings)
    return make_stream(settings)
end

-- Runs a trial; see docs/reference/lua.md.
function taut.run(options)
    check(options, "table", "taut.run")
    check_keys("taut.run", options,
        { "rate", "seconds", "warm_up", "stream", "streams", "send", "receive", "on_receive", "wait", "seed", "listen",
            "together", "pacing", "line" })
    local streams = options.streams or (options.stream and { options.stream }) or {}
    for i, stream in ipairs(streams) do
        if type(stream) ~= "table" or type(stream.settings) ~= "table" then
            error(format("taut.run: streams[%d] is none that taut.stream made", i), 0)
        end
    end
    if options.on_receive ~= nil then
        check(options.on_receive, "function", "on_receive")
    end
    return host.run(options, streams)
end

local send_options = {
    "seconds", "receive", "on_receive", "warm_up", "wait", "seed", "listen", "together", "pacing", "line",
}
local is_send_option = {}
for _, key in ipairs(send_options) do
    is_send_option[key] = true
end

-- Sends one stream whose packets `craft` changes, and measures the packets that come back.
function taut.send(port, craft, options)
    check(port, "table", "taut.send")
    check(craft, "function", "taut.send")
    local settings = { craft = craft }
    local run = { send = port }
    for key, value in pairs(options or {}) do
        if is_send_option[key] then
            run[key] = value
        else
            settings[key] = value
        end
    end
    run.streams = { make_stream(settings, send_options) }
    return taut.run(run)
end

-- Receives for `seconds` seconds, without sending but what `on_receive` sends: back, or on through the port `send`.
function taut.receive(port, on_receive, options)
    check(port, "table", "taut.receive")
    check(on_receive, "function", "taut.receive")
    options = options or {}
    check_keys("taut.receive", options, { "seconds", "wait", "send", "together" })
    return taut.run {
        send = options.send or port, receive = port, on_receive = on_receive, seconds = options.seconds,
        wait = options.wait, together = options.together,
    }
end

taut.now, taut.running, taut.sleep = host.now, host.running, host.sleep

-- ---- tasks ----

local task_meta = { __metatable = false, __index = { wait = function(self)
    return host.wait(self.number)
end } }

function taut.task(core, name, ...)
    if type(name) ~= "string" or type(_G[name]) ~= "function" then
        error("taut.task: expected a core (or nil) and the name of a global function", 0)
    end
    return setmetatable({ number = host.task(core, name, ...) }, task_meta)
end

-- ---- counters and histograms ----

taut.counter = counter

local histograms = {}

function taut.histogram(name)
    check(name, "string", "taut.histogram")
    if histograms[name] then
        return histograms[name]
    end
    local keep, flush, quantile = host.histogram(name)
    local histogram = { name = name }
    function histogram.record(_, value)
        if type(value) ~= "number" or not (value >= 0) then
            error("histogram:record: expected a number from 0 on", 0)
        end
        keep(value)
    end
    function histogram.percentile(_, percent)
        flush()
        return quantile(check(percent, "number", "histogram:percentile") / 100)
    end
    histograms[name] = histogram
    return histogram
end

_G.taut = taut
_G.print = host.print
return with_batch
