-- The health of a SyncSchema or a BackfillCheckpoint, for Argo CD.
--
-- Without it Argo CD knows no health for these kinds, and a sync wave goes on the moment the object exists.
--
-- Healthy      Ready: the gate of the version is open, or the checkpoint is activated.
-- Degraded     Stalled: nothing goes on before a person acts.
-- Suspended    Work is left and waits for a person who stopped it, or who has to approve it.
-- Progressing  Everything else, an object that the operator has not looked at included.

local health = {status = "Progressing", message = "The operator has not looked at this generation yet."}

if obj.metadata.deletionTimestamp ~= nil then
  health.message = "The object is being deleted."
  return health
end

if obj.status == nil or obj.status.conditions == nil or obj.status.observedGeneration ~= obj.metadata.generation then
  return health
end

local conditions = {}
for _, condition in ipairs(obj.status.conditions) do
  conditions[condition.type] = condition
end

local function is_true(condition)
  return condition ~= nil and condition.status == "True"
end

local ready = conditions["Ready"]
if ready == nil then
  return health
end

health.message = ready.reason
if ready.message ~= nil and ready.message ~= "" then
  health.message = ready.reason .. ": " .. ready.message
end

if is_true(conditions["Reconciling"]) then
  if ready.reason == "Suspended" or ready.reason == "ApprovalPending" then
    health.status = "Suspended"
  end
elseif is_true(conditions["Stalled"]) then
  health.status = "Degraded"
elseif is_true(ready) then
  health.status = "Healthy"
end
return health
