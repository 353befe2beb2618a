-- What replay.lua and throughput.lua share. Pktgen's own functions are in the table `pktgen`.

local tally = {}

-- Lines of other programs' screens do not mix with ours.
pktgen.screen("off")

local settings = dofile(FOLDER .. "settings.lua")
tally.settings = settings
local all_ports = "0-" .. (settings.ports - 1)
if settings.ports == 1 then all_ports = "0" end

-- Pktgen counts once a second, and what is on its way takes a moment.
local SETTLE_MS = 2500

function tally.say(...)
    print(string.format(...))
    io.stdout:flush()
end

-- Seconds since the machine started.
local function now()
    local file = assert(io.open("/proc/uptime"))
    local seconds = file:read("n")
    file:close()
    return seconds
end

-- Frames sent and received by each port since Pktgen started.
local function counted()
    local stats = pktgen.portStats(all_ports, "port")
    local ports = {}
    for port = 0, settings.ports - 1 do
        ports[port] = { sent = stats[port].opackets, received = stats[port].ipackets }
    end
    return ports
end

local function is_sending()
    local ports = pktgen.isSending(all_ports)
    for port = 0, settings.ports - 1 do
        if ports[port] == "y" then return true end
    end
    return false
end

-- Frames a second that a port sends at most, by the speed of its link.
function tally.line_rate()
    local link = pktgen.linkState("0")[0]
    local mbit = tonumber(link:match("UP%-(%d+)") or 0)
    if mbit == 0 then error("port 0: link " .. link) end
    -- Preamble, gap and frame check sequence are on the wire, too.
    return mbit * 1e6 / ((settings.frame_bytes + 24) * 8)
end

-- Sends `frames` from each port, at `percent` of the line rate, for `seconds_max` at most.
local function send(frames, percent, seconds_max)
    pktgen.set(all_ports, "rate", percent)
    pktgen.set(all_ports, "count", frames)
    local start = now()
    pktgen.start(all_ports)
    repeat
        pktgen.pause("", 20)
        local seconds = now() - start
        if seconds > seconds_max then pktgen.stop(all_ports) end
        if seconds > seconds_max + 5 then error("Pktgen does not stop sending") end
    until not is_sending()
    local seconds = now() - start
    pktgen.pause("", SETTLE_MS)
    return seconds
end

-- Sends the rest of the capture on ports that stopped within it: all ports begin at the same place.
local function align()
    local is_aligned = true
    for port, count in pairs(counted()) do
        local rest = -count.sent % settings.capture_frames
        if rest > 0 then
            is_aligned = false
            pktgen.set(tostring(port), "rate", 1)
            pktgen.set(tostring(port), "count", rest)
            pktgen.start(tostring(port))
        end
    end
    if is_aligned then return end
    local deadline = now() + 60
    while is_sending() do
        if now() > deadline then
            pktgen.stop(all_ports)
            error("the rest of the captures took more than a minute")
        end
        pktgen.pause("", 100)
    end
    pktgen.pause("", SETTLE_MS)
end

-- One trial: whole captures at `percent` of the line rate, for about `seconds`. Every fragment that
-- all workers have sent comes back as one result on every port.
function tally.trial(percent, seconds)
    align()
    local per_second = tally.line_rate() * percent / 100
    local captures = math.max(1, math.floor(per_second * seconds / settings.capture_frames))
    local frames = captures * settings.capture_frames
    local planned = frames / per_second
    local before = counted()
    local took = send(frames, percent, planned * 1.5 + 2)
    local after = counted()
    local trial = { percent = percent, seconds = took, sent = 0, expected = 0, received = 0, missing = 0 }
    for port = 0, settings.ports - 1 do
        local sent = after[port].sent - before[port].sent
        local received = after[port].received - before[port].received
        local expected = sent // settings.workers_of_port[port + 1]
        trial.sent = trial.sent + sent
        trial.received = trial.received + received
        trial.expected = trial.expected + expected
        -- What comes twice on one port does not make up for what is missing on another.
        trial.missing = trial.missing + math.abs(expected - received)
    end
    trial.frames_per_s = trial.sent / took
    trial.gbit_per_s = trial.frames_per_s * settings.frame_bytes * 8 / 1e9
    -- Pktgen waits when a port takes no more: then it is the rate that was not reached.
    trial.was_offered = trial.sent == frames * settings.ports and took <= planned * 1.02 + 0.1
    trial.is_good = trial.was_offered and trial.missing == 0
    local verdict = trial.is_good and "no loss"
        or not trial.was_offered and "Pktgen could not send that fast"
        or trial.missing .. " results missing or too many"
    tally.say("%6.2f %% of line rate: %d frames in %.2f s (%.3f Mframe/s, %.2f Gbit/s), %d of %d results: %s",
        percent, trial.sent, took, trial.frames_per_s / 1e6, trial.gbit_per_s,
        trial.received, trial.expected, verdict)
    return trial
end

-- Trials as JSON, beside the scripts.
function tally.write(name, trials, best)
    local lines = {}
    for _, t in ipairs(trials) do
        lines[#lines + 1] = string.format(
            '{"percent":%.3f,"seconds":%.2f,"sent":%d,"expected":%d,"received":%d,"missing":%d,'
            .. '"frames_per_s":%.0f,"gbit_per_s":%.3f,"was_offered":%s,"is_good":%s}',
            t.percent, t.seconds, t.sent, t.expected, t.received, t.missing,
            t.frames_per_s, t.gbit_per_s, t.was_offered, t.is_good)
    end
    local path = FOLDER .. name
    local file = assert(io.open(path, "w"))
    file:write(string.format('{"workers":%d,"ports":%d,"payload_bytes":%d,"element":"%s","best_percent":%s,"trials":[\n%s\n]}\n',
        settings.workers, settings.ports, settings.payload_bytes, settings.element,
        best and string.format("%.3f", best.percent) or "null", table.concat(lines, ",\n")))
    file:close()
    tally.say("written: %s", path)
end

-- Runs `main`, says what went wrong, and in any case stops all ports and ends Pktgen.
function tally.run(main)
    local is_done, why = pcall(function()
        if pktgen.portCount() ~= settings.ports then
            error(string.format("%d ports; the captures are for %d", pktgen.portCount(), settings.ports))
        end
        main()
    end)
    pktgen.stop(all_ports)
    if not is_done then tally.say("FAILED: %s", why) end
    pktgen.quit()
end

return tally
