if spans + clears > 0 then
  -- Byte order: Lua's own < is the order of the server's locale.
  local function before(a, b)
    local n = math.min(#a, #b)
    for j = 1, n, 16 do
      if sub(a, j, j + 15) ~= sub(b, j, j + 15) then
        for m = j, n do
          local x, y = byte(a, m), byte(b, m)
          if x ~= y then return x < y end
        end
      end
    end
    return #a < #b
  end
  -- Every key changed since the snapshot has a position behind it, is listed for as long as a snapshot could miss it,
  -- and stands in the feed behind it. So both ways below find the same; the shorter one is taken, and where both are
  -- long a span counts as changed.
  local newer, touched = position - snapshot
  local function walk()
    touched = {}
    local seen, pairs_ = {}, 0
    local found = call('XRANGE', KEYS[4], string.format('%.0f', snapshot + 1), '+', 'COUNT', 5001)
    if #found > 5000 then touched = false return end
    for j = 1, #found do
      local f = found[j][2]
      for m = 5, #f, 2 do
        local k = f[m + 1]
        if f[m] ~= 'a' and not seen[k] then
          seen[k] = true
          touched[#touched + 1] = k
          if #touched > 20000 then touched = false return end
        end
      end
    end
  end
  local function changed(start, stop)
    local low, high = '[' .. start, '(' .. stop
    local many = newer > 32 and call('ZLEXCOUNT', KEYS[2], low, high)
    if many and many < 3 * newer and many <= 5000 then
      local keys = call('ZRANGEBYLEX', KEYS[2], low, high)
      for a = 1, #keys, 1000 do
        local found = call('HMGET', D, unpack(keys, a, math.min(a + 999, #keys)))
        for j = 1, #found do
          local e = found[j]
          if e and from('>I8', e) > snapshot and byte(e, 17) % 64 < 32 then return keys[a + j - 1], e end
        end
      end
      return
    end
    if touched == nil then walk() end
    if not touched then
      local keys = call('ZRANGEBYLEX', KEYS[2], low, high, 'LIMIT', 0, 1)
      return keys[1], ''
    end
    for j = 1, #touched do
      local k = touched[j]
      if not before(k, start) and before(k, stop) then
        local e = call('HGET', D, k)
        if e and byte(e, 17) % 64 < 32 and from('>I8', e) > snapshot then return k, e end
      end
    end
  end
  if newer > 0 then
    for s = 1, spans do
      local k, e = changed(A[base + 2 * s - 1], A[base + 2 * s])
      if k then
        clashes = clashes or {}
        clashes[#clashes + 1] = {-s, k, e}
      end
    end
  end
  local place, room = base + 2 * spans, 10000
  for c = 1, clears do
    local low, high = '[' .. A[place + 2 * c - 1], '(' .. A[place + 2 * c]
    local keys = call('ZRANGEBYLEX', KEYS[2], low, high, 'LIMIT', 0, room + 1)
    room = room - #keys
    if room < 0 then return {6} end
    cleared, removed = cleared or {}, removed or {}
    for a = 1, #keys, 1000 do
      local found = call('HMGET', D, unpack(keys, a, math.min(a + 999, #keys)))
      for j = 1, #found do
        local k, e = keys[a + j - 1], found[j]
        if e and byte(e, 17) % 2 == 0 and not cleared[k] then
          cleared[k] = e
          removed[#removed + 1] = k
          removed[#removed + 1] = e
        end
      end
    end
  end
end
